"""`python -m headrace.cli`: the command, for those who have the package and not its script."""

from headrace.cli.main import main

main()

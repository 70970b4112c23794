"""The command `headrace`: one module per verb, thin over `headrace.ops`. The only door to typer and rich."""

"""The command `headrace`: one module per verb, thin over `headrace.ops`. Only here are typer and rich imported."""

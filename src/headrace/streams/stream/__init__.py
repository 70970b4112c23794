"""One stream: what may be stored in it, what is, and what goes again."""

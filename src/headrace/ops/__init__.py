"""What an operator does with a store, as functions over a plan of blocks. Nothing here prints."""

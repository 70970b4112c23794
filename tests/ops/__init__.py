"""What an operator does, on golden directories and damaged copies of them."""

"""What streams and consumers are configured to be, and which names and subjects are allowed: shared by models and layouts."""

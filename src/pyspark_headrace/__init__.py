"""Lets Spark find the source without registration."""

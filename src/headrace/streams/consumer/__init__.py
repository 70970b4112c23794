"""Consumers: what they may be, what they get next, what they acknowledged."""

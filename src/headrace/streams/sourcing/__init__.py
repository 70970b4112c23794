"""Mirrors and sources: streams that take the messages of other streams."""

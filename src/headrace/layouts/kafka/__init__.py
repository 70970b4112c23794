"""Kafka's log directories: read, written, recovered. FORMAT.md in this folder draws the bytes."""

"""Streams as bytes and files for other servers: snapshots, restore, the portable form."""

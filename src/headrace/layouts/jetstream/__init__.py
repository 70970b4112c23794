"""NATS JetStream: reads 2.6 to 2.15, writes 2.15's live form and a portable one. See FORMAT.md."""

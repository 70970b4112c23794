"""NATS Streaming's file store: channels in slices, subscriptions and clients beside them. FORMAT.md has the bytes."""

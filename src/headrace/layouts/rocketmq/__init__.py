"""RocketMQ's store: one commit log for all topics. FORMAT.md in this folder draws the bytes."""

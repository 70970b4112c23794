"""The pages of monitoring as plain documents with nats-server's field names, made from a `ServerView`."""

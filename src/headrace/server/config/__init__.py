"""The server's configuration: nats-server's config language and flags, read into frozen `ServerOptions`."""

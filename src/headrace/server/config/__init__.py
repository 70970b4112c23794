"""What the server was told: nats-server's config language and flags, read into frozen `Options`."""

"""The server: configuration, authentication, the NATS front end, monitoring. `headrace serve` starts it."""

"""The NATS front end: sockets and clients around the exchange, the turn on the event loop."""

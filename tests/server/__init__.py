"""The server without its sockets: configuration, authentication, logs, monitoring, system subjects."""

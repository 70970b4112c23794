"""What serving any protocol takes from the Rust core."""

from headrace._core import SOCKETS, Committer, Exchange, Requests, Sockets

__all__ = ["SOCKETS", "Committer", "Exchange", "Requests", "Sockets"]

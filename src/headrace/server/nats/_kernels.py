"""The one module of the front end that calls the Rust core."""

from headrace._core import (
    CALL,
    SOCKETS,
    Committer,
    Exchange,
    Sockets,
    Traffic,
    __version__,
)

__all__ = ["CALL", "SOCKETS", "Committer", "Exchange", "Sockets", "Traffic", "__version__"]

"""The one door from the front end to the core."""

from headrace._core import CALL, SOCKETS, Exchange, Sockets, __version__

__all__ = ["CALL", "SOCKETS", "Exchange", "Sockets", "__version__"]

"""The one door from the front end to the core."""

from headrace._core import CALL, Exchange, __version__

__all__ = ["CALL", "Exchange", "__version__"]

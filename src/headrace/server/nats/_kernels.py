"""What the NATS front end takes from the Rust core."""

from headrace._core import CALL, Exchange, Traffic, __version__

__all__ = ["CALL", "Exchange", "Traffic", "__version__"]

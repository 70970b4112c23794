"""The one module of the client that calls the Rust core."""

from headrace._core import Batch, Intake, __version__, encode_acks, encode_publishes

__all__ = ["Batch", "Intake", "__version__", "encode_acks", "encode_publishes"]

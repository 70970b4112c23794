"""The one door of this room to the core."""

from headrace._core import Batch, Intake, __version__, encode_publishes

__all__ = ["Batch", "Intake", "__version__", "encode_publishes"]

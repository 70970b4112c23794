"""What the server takes from the Rust core."""

from headrace._core import (
    CALL,
    SOCKETS,
    Committer,
    Exchange,
    Requests,
    Sockets,
    Traffic,
    __version__,
    subject_matches,
)

__all__ = [
    "CALL",
    "SOCKETS",
    "Committer",
    "Exchange",
    "Requests",
    "Sockets",
    "Traffic",
    "__version__",
    "subject_matches",
]

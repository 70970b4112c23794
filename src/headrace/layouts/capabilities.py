"""What the messages and logs of a layout have a place for: what a conversion, a replay or a table of rows must know of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

NO_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """An attribute of each layout that can be written."""

    layout: str
    codec: str
    """The headers that its encoder takes."""
    own_codec: str | None = None
    """The headers of its own messages, where they are taken as they are: from one of its directories to another."""
    origin: int
    """The first position of a log that was never emptied."""
    tick_ns: int
    """What its times are counted in; 0 where the time read back is the store's, not the message's."""
    keys: bool = False
    nulls: bool = False
    headers: bool = True
    holes: bool = True
    """Whether positions may be left out."""
    subjects: bool = False
    """Whether each message has a subject (or routing key) of its own."""
    subject_max: int = NO_LIMIT
    position: str = "sequence"
    log: str = "log"
    filters: bool = False
    """Whether a reader may read some subjects of a log only."""
    claims_subjects: bool = False
    """Whether a log has subjects that no other may have."""

    def taking_from(self, source: Capabilities) -> Capabilities:
        """As the target of messages of that source."""
        if source.layout == self.layout and self.own_codec is not None:
            return replace(self, codec=self.own_codec)
        return self

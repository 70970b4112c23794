"""Every option of the file store and the store limits, under the names of nats-streaming-server.

Fields are called like the server's flags; `ALIASES` are the keys of its configuration file. Sizes may be written
`64MB` (1024-based) or `64m` (1000-based), durations `1m` or `"72h"`, as there.

The server's own defaults for `max_msgs` (1,000,000) and `max_bytes` (1,024,000,000) are not ours: opening a directory
must not delete what somebody else was asked to keep, so without the option nothing is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, cast

from msgspec import Meta, field

from headrace.errors import BadInput
from headrace.layouts.layout import LayoutOptions
from headrace.units import parse_duration_ns

_SIZE = re.compile(r"^(\d+)\s*([a-zA-Z]*)$")
_UNITS = {"": 1, "b": 1, "k": 1000, "m": 10**6, "g": 10**9, "t": 10**12} | {
    f"{letter}{suffix}": 1024**power
    for power, letter in enumerate("kmgt", 1)
    for suffix in ("b", "ib")
}  # fmt: skip
_SIZES = {
    *("file_compact_min_size", "file_buffer_size", "file_read_buffer_size"),
    *("file_slice_max_bytes", "max_bytes"),
}
_DURATIONS = {"file_auto_sync", "file_slice_max_age", "max_age", "max_inactivity"}
_TRUE, _FALSE = {"true", "yes", "on", "1", "t"}, {"false", "no", "off", "0", "f"}
FLAG_ONLY = frozenset({"file_truncate_bad_eof"})
"""What the server takes on the command line and never from a file: see `StreamingOptions.from_config`."""

ALIASES: dict[str, str] = {
    alias: name
    for name, aliases in {
        "file_compact_enabled": "compact compact_enabled",
        "file_compact_frag": "compact_frag compact_fragmentation",
        "file_compact_interval": "compact_interval",
        "file_compact_min_size": "compact_min_size",
        "file_buffer_size": "buffer_size",
        "file_read_buffer_size": "read_buffer_size",
        "file_crc": "crc do_crc",
        "file_crc_poly": "crc_poly",
        "file_sync": "sync do_sync sync_on_flush",
        "file_auto_sync": "auto_sync",
        "file_slice_max_msgs": "slice_max_msgs slice_max_count slice_msgs slice_count",
        "file_slice_max_bytes": "slice_max_bytes slice_max_size slice_bytes slice_size",
        "file_slice_max_age": "slice_max_age slice_age slice_max_time slice_time_limit",
        "file_slice_archive_script": "slice_archive_script slice_archive slice_script",
        "file_fds_limit": "fds_limit file_descriptors_limit",
        "file_parallel_recovery": "parallel_recovery",
        "cluster_id": "id cid",
        "max_channels": "mc maxchannels",
        "max_subs": "msu max_subscriptions maxsubscriptions",
        "max_msgs": "mm maxmsgs max_count maxcount",
        "max_bytes": "mb maxbytes",
        "max_age": "ma maxage",
        "max_inactivity": "mi maxinactivity",
        "channels": "channels_limits channelslimits per_channel per_channel_limits",
    }.items()
    for alias in aliases.split()
}
BLOCKS = {"file", "file_options", "limits", "store_limits", "storelimits", "streaming"}


class StreamingOptions(LayoutOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a store is written, kept and recovered. Durations are nanoseconds once they are read."""

    aliases: ClassVar[Mapping[str, str]] = ALIASES

    cluster_id: Annotated[
        str, Meta(description="cluster id of a new store; must fit an existing one (new: test-cluster)")
    ] = ""
    file_compact_enabled: Annotated[bool, Meta(description="compact subs.dat and clients.dat")] = True
    file_compact_frag: Annotated[int, Meta(description="percent of void records from which on")] = 50
    file_compact_interval: Annotated[int, Meta(description="seconds between two of one file")] = 300
    file_compact_min_size: Annotated[int, Meta(description="not below this size")] = 1 << 20
    file_buffer_size: Annotated[
        int, Meta(description="acks and deliveries that wait in memory, per channel; 0: none")
    ] = 2 << 20
    file_read_buffer_size: Annotated[int, Meta(description="how much is read ahead; 0: one message")] = (
        2 << 20
    )
    file_crc: Annotated[bool, Meta(description="false: recovery takes records whose CRC does not fit")] = True
    file_crc_poly: Annotated[int, Meta(description="reversed CRC-32 polynomial, decimal")] = 3988292384
    file_sync: Annotated[bool, Meta(description="false: the same as durability 'interval'")] = True
    file_auto_sync: Annotated[int, Meta(description="how often what is not synced is (0: never)")] = (
        60_000_000_000
    )
    file_slice_max_msgs: Annotated[int, Meta(description="messages per slice; 0: no limit")] = 0
    file_slice_max_bytes: Annotated[int, Meta(description="bytes per slice, index included")] = 64 << 20
    file_slice_max_age: Annotated[int, Meta(description="time that a slice covers")] = 0
    file_slice_archive_script: Annotated[str, Meta(description="called for each slice that goes")] = ""
    file_fds_limit: Annotated[int, Meta(description="open files, a soft limit; 0: none")] = 0
    file_parallel_recovery: Annotated[int, Meta(description="channels recovered at the same time")] = 1
    file_truncate_bad_eof: Annotated[
        bool, Meta(description="cut files that end inside a record (bytes are kept aside); once only")
    ] = False
    encrypt: Annotated[bool, Meta(description="encrypt payloads that are written")] = False
    encryption_cipher: Annotated[str, Meta(description="AES or CHACHA")] = "AES"
    encryption_key: Annotated[str, Meta(description="the key's text")] = ""
    max_channels: Annotated[int, Meta(description="channels; 0: no limit")] = 100
    max_subs: Annotated[int, Meta(description="subscriptions per channel; 0: no limit")] = 1000
    max_msgs: Annotated[int, Meta(description="messages per channel; the oldest go")] = 0
    max_bytes: Annotated[int, Meta(description="bytes per channel; the oldest go")] = 0
    max_age: Annotated[int, Meta(description="older messages go")] = 0
    max_inactivity: Annotated[int, Meta(description="idle channels without subscribers go")] = 0
    channels: Annotated[
        dict[str, dict[str, Any]], Meta(description="limits of single channels, names or wildcards")
    ] = field(default_factory=lambda: cast("dict[str, dict[str, Any]]", {}))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """From keywords or flags: any spelling of the server's; BadInput has its texts."""
        flat: dict[str, Any] = {}
        for name, value in given.items():
            if name in BLOCKS and isinstance(value, Mapping):
                flat.update(cast("Mapping[str, Any]", value))
            else:
                flat[name] = value
        fields = {ALIASES.get(name, name): value for name, value in flat.items()}
        made = super().of({name: read_value(name, value) for name, value in fields.items()})
        made.validate()
        return made

    @classmethod
    def from_config(cls, given: Mapping[str, Any]) -> Self:
        """From a file of options: what must be decided each time anew may not stand there. A whole configuration
        file of the server is read by `config_file.from_server_config`."""
        inner = [cast("Mapping[str, Any]", value) for value in given.values() if isinstance(value, Mapping)]
        blocks = [given, *inner]
        for block in blocks:
            for name in FLAG_ONLY | {"truncate_bad_eof"}:
                if name in block:
                    raise BadInput(
                        f"{name} cannot stand in a configuration file: data may be lost by it, so it is given "
                        "by hand (--file_truncate_bad_eof) each time"
                    )
        return cls.of(given)

    def validate(self) -> None:
        """BadInput with the server's own texts."""
        checks = [
            (self.file_compact_frag >= 1, "compact fragmentation value must at least be 1"),
            (self.file_compact_interval >= 1, "compact interval value must at least be 1 seconds"),
            (self.file_compact_min_size >= 0, "compact minimum file size value must be a positive number"),
            (self.file_buffer_size >= 0, "buffer size value must be a positive number"),
            (self.file_read_buffer_size >= 0, "read buffer size value must be a positive number"),
            (
                1 <= self.file_crc_poly <= 0xFFFF_FFFF,
                "crc polynomial should be between 1 and 4294967295",
            ),
            (
                min(self.file_slice_max_msgs, self.file_slice_max_bytes, self.file_slice_max_age) >= 0,
                "slice max values must be positive numbers",
            ),
            (self.file_fds_limit >= 0, "file descriptor limit must be a positive number"),
            (self.file_parallel_recovery >= 1, "parallel recovery value must be at least 1"),
            (self.encryption_cipher.upper() in ("AES", "CHACHA"), "encryption cipher must be AES or CHACHA"),
        ]
        limits = {
            "channels": self.max_channels,
            "subscriptions": self.max_subs,
            "messages": self.max_msgs,
            "bytes": self.max_bytes,
            "age": self.max_age,
            "inactivity": self.max_inactivity,
        }
        checks += [
            (value >= 0, f"max {what} limit cannot be negative ({value})") for what, value in limits.items()
        ]
        for holds, text in checks:
            if not holds:
                raise BadInput(text)


def read_value(name: str, value: Any) -> Any:
    """Texts as the server reads them: sizes, durations, yes and no."""
    if not isinstance(value, str):
        return value
    if name in _SIZES:
        return _size(name, value)
    if name in _DURATIONS:
        text = value.strip()
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        return -parse_duration_ns(text[1:]) if text.startswith("-") else parse_duration_ns(text)
    kind = StreamingOptions.__annotations__.get(name, "")
    if "[bool" in str(kind):
        word = value.strip().lower()
        if word in _TRUE | _FALSE:
            return word in _TRUE
        raise BadInput(f"option {name}: {value!r} is neither true nor false")
    return value


def _size(name: str, text: str) -> int:
    match = _SIZE.match(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise BadInput(f"option {name}: {text!r} is not a size; write 512, 64KB, 8MB or 2GB")
    return int(match[1]) * _UNITS[match[2].lower()]

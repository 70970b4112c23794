"""Every setting of RabbitMQ that concerns these files, under RabbitMQ's name; then ours, which say so."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headrace.layouts.layout import LayoutOptions


class RabbitOptions(LayoutOptions, frozen=True, kw_only=True):
    """Sizes in bytes, times in milliseconds."""

    queue_index_segment_entry_count: Annotated[
        int,
        Meta(
            ge=1,
            le=16384,
            description="entries per segment file, for a vhost that is made anew; others keep theirs",
        ),
    ] = 2048
    queue_index_max_journal_entries: Annotated[
        int, Meta(ge=0, description="flush the journal into segments when it holds more records than this")
    ] = 32768
    queue_index_embed_msgs_below: Annotated[
        int,
        Meta(
            ge=0,
            description="a message whose body and properties are smaller lies in the index; 0: none does",
        ),
    ] = 4096
    msg_store_file_size_limit: Annotated[
        int, Meta(ge=1, description="a store file that has reached this size is followed by the next one")
    ] = 16 << 20
    msg_store_gc_garbage_fraction: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="merge store files when more than this part is garbage (RabbitMQ: fixed at 0.5)",
        ),
    ] = 0.5
    queue_sync_interval: Annotated[
        int,
        Meta(
            ge=1,
            description="mode interval: a journal is synced this long after a write (RabbitMQ: fixed at 200)",
        ),
    ] = 200
    msg_store_sync_interval: Annotated[
        int,
        Meta(ge=1, description="mode interval: store files are synced this often (RabbitMQ: fixed at 25)"),
    ] = 25
    queue_hibernate_after: Annotated[
        int,
        Meta(
            ge=1,
            description="an idle queue flushes and gives up its memory after this time (RabbitMQ: about 2000)",
        ),
    ] = 2000
    queue_index_max_journal_bytes: Annotated[
        int, Meta(ge=0, description="ours: flush when the journal of a queue takes more memory than this")
    ] = 16 << 20
    deliver_at_publish: Annotated[
        bool,
        Meta(
            description="ours: true writes a deliver record behind each publish as 3.10 does, false at delivery as 3.9 did"
        ),
    ] = True
    timestamp_new_messages: Annotated[
        bool,
        Meta(description="ours: a message without a time gets the properties timestamp and timestamp_in_ms"),
    ] = True
    open_files_max: Annotated[
        int, Meta(ge=8, description="ours: journals kept open; the others are opened when needed")
    ] = 256

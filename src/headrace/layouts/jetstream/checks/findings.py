"""What the core found unsound in a block, as damage that people see."""

from __future__ import annotations

from headrace.layouts.base import Damage
from headrace.layouts.jetstream._kernels import BlockFinding


def damage_of(msgs_dir: str, finding: BlockFinding) -> Damage:
    """With the name of the block's file."""
    return Damage(
        f"{msgs_dir}/{finding.block}.blk",
        finding.offset,
        finding.length,
        finding.kind,
        finding.detail,
        finding.first_seq,
        finding.next_seq,
    )

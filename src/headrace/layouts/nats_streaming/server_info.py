"""`server.dat`: exactly one record, the cluster and its subjects. The subjects in it are served, never recomputed."""

from __future__ import annotations

import logging

from headrace.errors import BadInput, Damaged
from headrace.layouts.nats_streaming import advice
from headrace.layouts.nats_streaming._kernels import Disk, stan_frame, stan_frames
from headrace.layouts.nats_streaming.names import HEAD, SERVER
from headrace.layouts.nats_streaming.protos import ServerInfo
from headrace.layouts.nats_streaming.recovery import ChannelRecovery
from headrace.layouts.shortcuts import read_or_damaged

LOG = logging.getLogger("headrace")
_BYTES_MAX = 1 << 20
DEFAULT_CLUSTER = "test-cluster"
USUAL_POLYS = (0xEDB8_8320, 0x82F6_3B78, 0xEB31_D82E)
"""IEEE, Castagnoli, Koopman."""


def read_info(disk: Disk, root: str, poly: int, strict: bool = True) -> ServerInfo | None:
    """What server.dat says; None when it is missing or has only its head. Damaged otherwise."""
    path = f"{root}/{SERVER}"
    data = read_or_damaged(disk, path, _BYTES_MAX, "move it away: readers do without it")
    if data is None:
        return None
    if data[:4] != HEAD:
        seen = (
            "unable to verify file version: EOF"
            if len(data) < 4
            else f"unsupported file version: {int.from_bytes(data[:4], 'little')} (supports [1..1])"
        )
        raise advice.damaged(path, 0, seen)
    frames, problems, end = stan_frames(data, 0, poly, strict, False)
    if problems:
        offset, _, detail, cut_short = problems[0]
        raise advice.damaged(path, offset, "unexpected EOF" if cut_short else detail)
    if not frames:
        return None
    if len(frames) > 1 or end != len(data):
        expected = frames[0][0] + 8 + len(frames[0][2])
        raise advice.damaged(
            path, expected, f"incorrect file size, expected {expected} bytes, got {len(data)} bytes"
        )
    try:
        return ServerInfo.decode(frames[0][2])
    except ValueError as problem:
        raise advice.damaged(path, frames[0][0], str(problem)) from None


def find_poly(disk: Disk, root: str, given: int) -> int:
    """The polynomial that server.dat was written with, if it is a usual one and not the given; for reading."""
    for poly in (given, *USUAL_POLYS):
        try:
            if read_info(disk, root, poly) is not None:
                return poly
        except Damaged:
            continue
    return given


def recover_info(how: ChannelRecovery, cluster_id: str, has_channels: bool) -> ServerInfo:
    """For writing: what is there, completed; or a new one. A cluster id that does not fit is refused."""
    try:
        found = read_info(how.disk, how.root, how.poly, how.strict)
    except Damaged as problem:
        LOG.error('Server file "%s/%s" corrupted: %s', how.root, SERVER, problem.seen)
        raise
    if found is not None:
        if cluster_id and cluster_id != found.cluster_id:
            raise BadInput(
                f'cluster ID "{cluster_id}" does not match recovered value of "{found.cluster_id}"'
            )
        if found.sub_close:
            return found
        found = found.with_(sub_close=f"_STAN.subclose.{found.cluster_id}")
    elif has_channels:
        LOG.warning("Server information was not recovered, however channels are present. It is made anew.")
        how.note(
            f"{how.root}/{SERVER}", 0, 0, "metadata",
            "missing; it was made anew: clients that knew other subjects must connect again",
        )  # fmt: skip
    info = found or ServerInfo.of_cluster(cluster_id or DEFAULT_CLUSTER)
    how.disk.replace_file(f"{how.root}/{SERVER}", HEAD + stan_frame(0, info.encode(), how.poly))
    return info

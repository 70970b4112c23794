"""Build the wheel into dist/ and read every byte of it back before it counts.

A wheel with a wrong byte was met twice on busy machines, from sources that gave a sound one a moment later. So each
member's CRC and its hash in RECORD are checked; a wheel that fails is kept as dist/broken-<n>.whl and built again.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
TRIES = 3


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    staging = DIST / "new"
    for attempt in range(1, TRIES + 1):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        maturin = Path(sys.executable).with_name("maturin")
        subprocess.run([maturin, "build", "--release", "--quiet", "--out", staging], cwd=ROOT, check=True)
        (wheel,) = staging.glob("*.whl")
        problem = first_problem(wheel)
        if problem is None:
            wheel.rename(DIST / wheel.name)
            staging.rmdir()
            return 0
        kept = wheel.rename(DIST / f"broken-{attempt}.whl")
        print(f"headrace: {kept}: {problem} (try {attempt} of {TRIES})", file=sys.stderr)
    return 1


def first_problem(wheel: Path) -> str | None:
    """What of a wheel cannot be read back as it was recorded; None if all of it can."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            broken = archive.testzip()
            if broken is not None:
                return f"{broken}: its CRC disagrees"
            (record,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
            for line in archive.read(record).decode().splitlines():
                name, digest, _size = line.rsplit(",", 2)
                if digest and digest != _record_hash(archive.read(name)):
                    return f"{name}: its hash in RECORD disagrees"
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    raise SystemExit(main())

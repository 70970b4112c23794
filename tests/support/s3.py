"""A real S3 protocol on the loopback interface: a moto server as a process.

with S3Server(tmp_path) as server:
    server.upload(store, "bucket/store")
    server.uri("bucket/store")          # s3://bucket/store?endpoint_override=…
    server.requests()                   # ["GET /bucket/store/…", …] since it was asked last
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow.fs as fs

from tests.support.peers import START_LIMIT_S, STOP_LIMIT_S, PeerFailed, find_peer, free_port

VERSION = "5.2.5"
# Workers of Spark get them from the environment of the test process: set before the session starts.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "headrace-tests",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_REQUEST = re.compile(r'"(?:\x1b\[[0-9;]*m)*([A-Z]+) (\S+) HTTP')


class S3Server:
    """Buckets in its memory, gone with it."""

    def __init__(self, place: Path) -> None:
        self._log = place / "s3.log"
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._read_bytes = 0

    def __enter__(self) -> Self:
        self._port = free_port()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [find_peer("moto", VERSION), "-H", "127.0.0.1", "-p", str(self._port)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + START_LIMIT_S
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/moto-api/data.json", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                if time.monotonic() > until or self._process.poll() is not None:
                    self.__exit__(None, None, None)
                    raise PeerFailed(f"the S3 server did not start:\n{self._log.read_text()}") from None
                time.sleep(0.1)
        self.files: Any = fs.S3FileSystem(
            access_key=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            secret_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=f"127.0.0.1:{self._port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def uri(self, key: str, scheme: str = "s3") -> str:
        """With the parameters that lead to this server."""
        return f"{scheme}://{key}?endpoint_override=127.0.0.1:{self._port}&scheme=http&region=us-east-1"

    def upload(self, directory: Path, key: str) -> None:
        """Files only, as every tool does it: empty directories do not exist there."""
        self.files.create_dir(key.partition("/")[0])
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                with self.files.open_output_stream(f"{key}/{path.relative_to(directory)}") as out:
                    out.write(path.read_bytes())

    def requests(self) -> list[str]:
        """What was asked since the last call: method and path."""
        text = self._log.read_text(errors="replace")[self._read_bytes :]
        self._read_bytes += len(text)
        return [f"{method} {path}" for method, path in _REQUEST.findall(text)]

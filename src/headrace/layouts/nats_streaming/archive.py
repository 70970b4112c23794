"""Slices that go: deleted, or renamed to `.bak` and handed to `file_slice_archive_script`.

    script  <channel>  <dir>/<channel>/msgs.N.dat.bak  <dir>/<channel>/msgs.N.idx.bak

`<dir>` is the directory as it was given; both names have the same N. The script runs beside us with our working
directory and environment; it deletes the files when it is done, and if it fails they stay.
"""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.layouts.nats_streaming._kernels import Disk
from headrace.layouts.nats_streaming.names import data_path, index_path

LOG = logging.getLogger("headrace")
BACKUP = ".bak"
Runner = Callable[[list[str]], tuple[int, str]]


def run_script(argv: list[str]) -> tuple[int, str]:
    """(exit code, what it printed)"""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    return done.returncode, done.stdout + done.stderr


class Archiver:
    """Takes slices away. One for each volume."""

    def __init__(self, disk: Disk, script: str = "", run: Runner = run_script) -> None:
        self._disk, self._script, self._run = disk, script, run
        self._running: list[threading.Thread] = []

    def remove(self, channel: str, directory: str, number: int) -> None:
        """The slice is gone from the channel when this returns; a script goes on in its own thread."""
        data, index = data_path(directory, number), index_path(directory, number)
        if not self._script:
            self._unlink(data, index)
            return
        try:
            self._disk.rename(data, data + BACKUP)
            self._disk.rename(index, index + BACKUP)
        except HeadraceError as problem:
            LOG.warning("%s: not archived (%s), deleted instead", data, problem)
            self._unlink(data + BACKUP, data, index)
            return
        argv = [self._script, channel, data + BACKUP, index + BACKUP]
        thread = threading.Thread(target=self._call, args=(argv,), name="headrace-archive")
        self._running = [other for other in self._running if other.is_alive()] + [thread]
        thread.start()

    def _unlink(self, *paths: str) -> None:
        for path in paths:
            if self._disk.entry(path) is not None:
                self._disk.remove_file(path)

    def _call(self, argv: list[str]) -> None:
        try:
            code, output = self._run(argv)
            problem = f"exit status {code}" if code else ""
        except OSError as error:
            problem, output = str(error), ""
        if problem:
            LOG.info('Error invoking archive script "%s": %s (output=%s)', argv[0], problem, output)
        else:
            LOG.info("Output of archive script for %s (%s and %s): %s", *argv[1:], output)

    def wait(self) -> None:
        """Until every script that was started has ended."""
        for thread in self._running:
            thread.join()
        self._running = []

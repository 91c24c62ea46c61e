"""A file system of a few megabytes that a test can fill, for a Redis server."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers import SYSTEM, missing, require_binary
from tests.support.topologies.node import Node, common_options, pick_port

_SIZE = "24m"
_PAGE = 4096
_READY = "mounted"


class SmallDisk:
    """A tmpfs in a separate mount namespace, which ends with the process that holds it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._dir = directory
        mount = f"mount -t tmpfs -o size={_SIZE} tmpfs {directory}"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", f"{mount} && echo {_READY} && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._holder.stdout is not None
        answer = self._holder.stdout.readline().decode().strip()
        if answer != _READY:
            self.close()
            missing(f"no small file system: {answer}")

    def node(self, fsync: str) -> Node:
        """A server with its append-only file on this disk; not started."""
        enter = ["--target", str(self._holder.pid), "--mount", require_binary(SYSTEM)]
        options = [*common_options(durable=True), "--appendfsync", fsync]
        node = Node("nsenter", self._dir, pick_port(), [*enter, *options])
        node.log_path = self._dir.with_suffix(".log")  # not on the small disk
        return node

    @property
    def _filler(self) -> Path:
        return Path(f"/proc/{self._holder.pid}/root{self._dir}/filler")

    def fill(self) -> None:
        """Fills the disk, except for the rest of the last page of each file."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(_PAGE))

    def free(self) -> None:
        self._filler.unlink()

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        for pipe in (self._holder.stdin, self._holder.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def small_disk(directory: Path) -> Iterator[SmallDisk]:
    """An empty disk, mounted for its servers only."""
    if os.geteuid() != 0:
        missing("mounting a small file system needs root")
    disk = SmallDisk(directory)
    try:
        yield disk
    finally:
        disk.close()

"""What a process that parses hostile input cannot do."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest

from sluice.worker.execution.process_pool import confine
from sluice.worker.execution.process_pool.child import EXTRA_TASKS, MOST_FILE_BYTES
from sluice.worker.execution.process_pool.pool import ProcessPool
from tests.support.servers import missing
from tests.support.worker.computing import double, limits, reads, writes_file


@pytest.fixture
def landlock() -> None:
    if ctypes.CDLL(None).syscall(444, None, 0, 1) < 1:  # its version
        missing("this kernel has no Landlock")


@pytest.mark.usefixtures("landlock")
async def test_credentials_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has the worker's user, so file modes allow it."""
    directory = tmp_path / "credentials"
    directory.mkdir()
    (directory / "redis_url").write_text("secret")
    (tmp_path / "link").symlink_to(directory)
    (tmp_path / "upload").write_text("an upload")
    (tmp_path / "spool").mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(directory))
    pool = ProcessPool(1)
    try:
        for name in ("credentials/redis_url", "link/redis_url", "spool/../credentials/redis_url"):
            with pytest.raises(PermissionError):
                await pool.run(reads, str(tmp_path / name))
        with pytest.raises(PermissionError):
            await pool.run(reads, f"/proc/{os.getpid()}/environ")
        assert await pool.run(reads, str(tmp_path / "upload")) == "an upload"
        await pool.run(writes_file, str(tmp_path / "spool" / "out"), 10)
        assert await pool.run(reads, str(tmp_path / "spool" / "out")) == "\0" * 10
        assert await pool.run(reads, "/proc/self/comm")
    finally:
        await pool.close()


@pytest.mark.parametrize("directory", ["", "/nowhere"])
async def test_without_credentials(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", directory)
    pool = ProcessPool(1)
    try:
        assert await pool.run(double, 2) == 4
    finally:
        await pool.close()


async def test_large_files_and_many_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    assert confine.own_tasks() >= threading.active_count()
    pool = ProcessPool(1, input_is_hostile=True)
    try:
        file_bytes, tasks = await pool.run(limits)
        assert file_bytes == MOST_FILE_BYTES
        assert tasks > EXTRA_TASKS
        with pytest.raises(OSError, match="File too large"):
            await pool.run(writes_file, str(tmp_path / "large"), MOST_FILE_BYTES + 1)
    finally:
        await pool.close()

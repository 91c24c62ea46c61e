"""The journal's native protocol: all fields arrive, and logging never blocks the process."""

from __future__ import annotations

import array
import contextlib
import fcntl
import logging
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.common.observability import journal, logs
from sluice.common.observability.journal import JournalHandler
from sluice.common.settings.worker import WorkerSettings

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="journald is Linux's")


class FakeJournal:
    """journald's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(5)

    def entry(self) -> dict[str, str]:
        """The next entry, by datagram or by file."""
        data, rights, _, _ = self.socket.recvmsg(1 << 20, 1024)
        if not data:
            [(level, kind, raw)] = rights
            assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            [file] = array.array("i", raw[:4])
            try:
                seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
                assert seals & fcntl.F_SEAL_WRITE, "journald takes sealed files only"
                data = os.pread(file, os.fstat(file).st_size, 0)
            finally:
                os.close(file)
        return parse(data)

    def close(self) -> None:
        self.socket.close()


def parse(data: bytes) -> dict[str, str]:
    """Entries as journald reads them."""
    found: dict[str, str] = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            [length] = struct.unpack("<Q", data[:8])
            value, end, data = data[8 : 8 + length], data[8 + length], data[9 + length :]
            assert end == ord("\n")
        assert name.decode() not in found
        found[name.decode()] = value.decode()
    return found


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a path short enough for a socket."""
    folder = tempfile.mkdtemp(prefix="sluice-j-")
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def fake(directory: Path) -> Iterator[FakeJournal]:
    fake = FakeJournal(directory / "socket")
    yield fake
    fake.close()


@contextlib.contextmanager
def logger_to(path: str) -> Iterator[logging.Logger]:
    """A logger whose lines go to the journal at `path`."""
    handler = JournalHandler("sluice-test", logs.context_fields, path)
    handler.setFormatter(logs.MessageFormatter())
    logger = logging.Logger("worker.test")
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_a_line_has_all_its_fields(fake: FakeJournal) -> None:
    tokens = [(logs.job_id, logs.job_id.set("j1")), (logs.task, logs.task.set("chat"))]
    attempt = logs.attempt.set(2)
    try:
        with logger_to(fake.path) as log:
            log.warning("attempt %d failed", 2)
    finally:
        logs.attempt.reset(attempt)
        for variable, token in tokens:
            variable.reset(token)
    entry = fake.entry()
    assert entry.pop("CODE_LINE").isdigit()
    assert entry.pop("CODE_FILE").endswith("tests/common/observability/test_journal.py")
    assert entry == {
        "MESSAGE": "attempt 2 failed",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "sluice-test",
        "LOGGER": "worker.test",
        "CODE_FUNC": "test_a_line_has_all_its_fields",
        "JOB_ID": "j1",
        "TASK": "chat",
        "ATTEMPT": "2",
    }


def test_several_lines_are_one_entry(fake: FakeJournal) -> None:
    with logger_to(fake.path) as log:
        try:
            raise ValueError("half a character: \ud800\nSECOND=line")
        except ValueError:
            log.exception("handler failed")
    entry = fake.entry()
    message = entry["MESSAGE"].splitlines()
    assert message[0] == "handler failed"
    assert message[-2:] == ["ValueError: half a character: ?", "SECOND=line"]
    assert "SECOND" not in entry
    # It may be about another job.
    with logger_to(fake.path) as log:
        log.error("given up", extra=logs.job_extra("j2"))
    assert fake.entry()["JOB_ID"] == "j2"


@pytest.mark.parametrize("size", [300_000, 5_000_000])
def test_an_entry_too_long_for_a_datagram_is_sent_as_a_file(fake: FakeJournal, size: int) -> None:
    with logger_to(fake.path) as log:
        before = len(os.listdir("/proc/self/fd"))
        log.info("%s", "x" * size)
        assert len(os.listdir("/proc/self/fd")) == before  # the file is closed
    entry = fake.entry()
    assert len(entry["MESSAGE"]) == size
    assert entry["LOGGER"] == "worker.test"


def test_without_journal_lines_go_to_stderr(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with logger_to(str(directory / "nobody")) as log:
        log.error("one\ntwo")
        log.debug("three", extra=logs.job_extra("j1"))
        log.info("four", extra=logs.job_extra("x\n<3>forged"))
    assert capfd.readouterr().err == (
        "<3>one\n<3>    two\n<7>three job_id=j1\n<6>four job_id='x\\n<3>forged'\n"
    )


def test_restarted_journal_is_used_again(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = directory / "socket"
    with logger_to(str(path)) as log:
        first = FakeJournal(path)
        log.info("one")
        assert first.entry()["MESSAGE"] == "one"
        first.close()
        log.info("two")
        path.unlink()
        log.info("three")
        second = FakeJournal(path)
        log.info("four")
        assert second.entry()["MESSAGE"] == "four"
        second.close()
    assert capfd.readouterr().err == "<6>two\n<6>three\n"


def test_a_hanging_journal_does_not_block(
    fake: FakeJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its socket nor a stderr that it reads accepts any more."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    monkeypatch.setattr(journal, "_STDERR", write)
    with logger_to(fake.path) as log:
        for number in range(1000):  # far more than a socket can queue
            log.info("line %d", number)
        came = 0
        fake.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                assert fake.entry()["MESSAGE"] == f"line {came}"
                came += 1
        assert 0 < came < 1000
        log.info("it goes on")
        assert fake.entry()["MESSAGE"] == "it goes on"
        lost = fake.entry()
    assert lost["MESSAGE"] == f"{1000 - came} log lines were lost while the journal was unavailable"
    assert lost["PRIORITY"] == "4"
    os.close(read)
    os.close(write)


def test_levels_are_mapped_to_syslog_priorities() -> None:
    levels = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, 5)
    assert [journal.priority(level) for level in levels] == [2, 3, 4, 6, 7, 7]


def test_auto_selects_the_journal_only_if_stderr_is_one(
    fake: FakeJournal, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(directory / "log", "wb") as file:
        monkeypatch.setattr(journal, "_STDERR", file.fileno())
        monkeypatch.setattr(journal, "SOCKET", fake.path)
        stat = os.fstat(file.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{stat.st_dev}:{stat.st_ino}")
        assert journal.stderr_is_journal(fake.path)
        assert not journal.stderr_is_journal(str(directory / "nobody"))
        monkeypatch.setenv("JOURNAL_STREAM", f"{stat.st_dev}:{stat.st_ino + 1}")
        assert not journal.stderr_is_journal(fake.path)
        monkeypatch.delenv("JOURNAL_STREAM")
        assert not journal.stderr_is_journal(fake.path)


def test_lines_of_workers_have_a_name(fake: FakeJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JournalHandler.__init__, "__defaults__", (fake.path,))
    handler = logs._handler(WorkerSettings(consumer="w1", log_format="journal"))
    handler.handle(
        logging.LogRecord("a", 20, __file__, 1, "sluice_abcdefgh_0123456789abcdef", None, None)
    )
    handler.close()
    entry = fake.entry()
    assert (entry["CONSUMER"], entry["SYSLOG_IDENTIFIER"]) == ("w1", "sluice-worker")
    assert entry["MESSAGE"] == "sluice_abcdefgh_***"

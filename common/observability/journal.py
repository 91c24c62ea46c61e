"""Logging to systemd's journal in its native protocol, so that entries can be queried by field."""

from __future__ import annotations

import array
import errno
import fcntl
import logging
import os
import select
import socket
import struct
from collections.abc import Callable, Mapping

from sluice.common.text import escape_lines, plural, shown_fields

SOCKET = "/run/systemd/journal/socket"
#: Longest line written to stderr instead: poll guarantees space for this many bytes.
_STDERR_BYTES = 4096
_STDERR = 2
_TOO_LONG = (errno.EMSGSIZE, errno.ENOBUFS)

Fields = Callable[[logging.LogRecord], Mapping[str, str]]


def stderr_is_journal(path: str = SOCKET) -> bool:
    """True if stderr is connected to the journal."""
    stream = os.environ.get("JOURNAL_STREAM", "")
    try:
        stderr = os.fstat(_STDERR)
    except OSError:
        return False
    return stream == f"{stderr.st_dev}:{stderr.st_ino}" and os.path.exists(path)


class JournalHandler(logging.Handler):
    """Sends each record as one datagram with its fields.

    Logging must neither block nor break the process. If the journal is unavailable or too slow, the
    line goes to stderr without fields; if that would block, it is dropped. The number of dropped
    lines is logged afterwards.
    """

    def __init__(self, identifier: str, fields: Fields, path: str = SOCKET) -> None:
        super().__init__()
        self._identifier = identifier
        self._fields = fields
        self._path = path
        self._lost = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record, or write it to stderr, or drop it."""
        try:
            message, fields = self.format(record), self._fields(record)
            if self._send(encode(self._entry(record, message, fields))):
                self._report_losses()
            else:
                text = escape_lines(message) + shown_fields(fields)
                self._write_stderr(priority(record.levelno), text)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _entry(
        self, record: logging.LogRecord, message: str, fields: Mapping[str, str]
    ) -> dict[str, str]:
        return {
            "MESSAGE": message,
            "PRIORITY": str(priority(record.levelno)),
            "SYSLOG_IDENTIFIER": self._identifier,
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
            **{name.upper(): value for name, value in fields.items()},
        }

    def _send(self, entry: bytes) -> bool:
        # Connected by path each time: a restarted journal listens on a new socket there.
        try:
            self._socket.sendto(entry, self._path)
        except OSError as error:
            return error.errno in _TOO_LONG and self._send_file(entry)
        return True

    def _send_file(self, entry: bytes) -> bool:
        """Send an entry that is too long for a datagram as a sealed memory file."""
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        try:
            file = os.memfd_create("log-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                with open(file, "wb", closefd=False) as memory:
                    memory.write(entry)
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))
                self._socket.sendmsg([], [rights], 0, self._path)
            finally:
                os.close(file)
        except OSError:
            return False
        return True

    def _write_stderr(self, level: int, message: str) -> None:
        """Write a line to stderr, if it would not block; systemd reads the level prefix."""
        text = "".join(f"<{level}>{line}\n" for line in message.split("\n"))
        if not is_writable(_STDERR):
            self._lost += 1
            return
        with open(_STDERR, "wb", buffering=0, closefd=False) as stderr:
            stderr.write(text.encode(errors="replace")[:_STDERR_BYTES])

    def _report_losses(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            lines = plural(lost, "log line was", "log lines were")
            message = f"{lines} lost while the journal was unavailable"
            self.emit(
                logging.LogRecord(
                    __name__, logging.WARNING, __file__, 0, message, None, None, "_report_losses"
                )
            )


def is_writable(descriptor: int) -> bool:
    """True if a short write would not block."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(events & select.POLLOUT for _, events in poll.poll(0))


def priority(level: int) -> int:
    """The syslog priority of a logging level."""
    for least, syslog in ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4)):
        if level >= least:
            return syslog
    return 6 if level >= logging.INFO else 7


def encode(entry: Mapping[str, str]) -> bytes:
    """Fields in the journal's protocol; empty ones are left out."""
    return b"".join(_field(name, value) for name, value in entry.items() if value)


def _field(name: str, value: str) -> bytes:
    raw = value.encode(errors="replace")
    if b"\n" in raw:
        return b"%b\n%b%b\n" % (name.encode(), struct.pack("<Q", len(raw)), raw)
    return b"%b=%b\n" % (name.encode(), raw)

"""File of dead-lettered webhook deliveries: one line of JSON each, rotated by size."""

from __future__ import annotations

import base64
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from sluice.common import codec
from sluice.common.contracts.webhooks import DeadLetterFileField
from sluice.common.features.workflows.webhooks.dead_letters import WebhookDeadLetter
from sluice.worker.features.webhooks.request import FIXED_HEADERS, format_rfc3339
from sluice.worker.features.webhooks.sender import DeliveryResult

log = logging.getLogger(__name__)

#: Size at which the file is rotated.
MOST_BYTES: Final = 64 << 20
#: Rotated files that are kept, as `….1` (the newest) and so on.
ROTATED_FILES: Final = 4
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_NEWLINE: Final = b"\n"


class DeadLetterFile:
    """Safe for several processes: each holds a lock on the file while it appends."""

    def __init__(self, path: str | Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = Path(path)
        self._most_bytes = most_bytes

    def append(self, line: bytes) -> bool:
        """Append a line and sync it to disk; returns False after a logged failure."""
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            with self._locked() as file:
                _write(file, line.rstrip(_NEWLINE) + _NEWLINE)
                if os.fstat(file).st_size <= len(line) + 1:
                    _sync_directory(self._path.parent)
        except OSError as error:
            log.error(
                "could not write a dead-lettered webhook to %s: %s; check "
                "WORKFLOW_WEBHOOK_DLQ_PATH",
                self._path,
                error,
            )
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The open and locked file, rotated if it was full."""
        while True:
            file = os.open(self._path, _FLAGS, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not self._is_current(file):  # rotated while waiting for the lock
                    continue
                if os.fstat(file).st_size >= self._most_bytes:
                    self._rotate()
                    continue
                yield file
                return
            finally:
                os.close(file)

    def _is_current(self, file: int) -> bool:
        try:
            current = os.stat(self._path)
        except FileNotFoundError:
            return False
        held = os.fstat(file)
        return (current.st_dev, current.st_ino) == (held.st_dev, held.st_ino)

    def _rotate(self) -> None:
        for number in range(ROTATED_FILES, 0, -1):
            older = self._rotated_path(number - 1)
            if older.exists():
                os.replace(older, self._rotated_path(number))

    def _rotated_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _write(file: int, line: bytes) -> None:
    """Write a line completely or not at all; first ends a line torn by a power failure."""
    size = os.fstat(file).st_size
    torn = size > 0 and os.pread(file, 1, size - 1) != _NEWLINE
    whole = _NEWLINE + line if torn else line
    written = os.write(file, whole)
    if written < len(whole):
        os.ftruncate(file, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file)


def _sync_directory(path: Path) -> None:
    """Sync the directory, so that the name of a new file is durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def attempt_detail(number: int, result: DeliveryResult, at_ms: int) -> bytes:
    """One attempt, as recorded in dead letters."""
    return codec.dumps(
        {
            DeadLetterFileField.ATTEMPT: number,
            DeadLetterFileField.STATUS: result.status,
            DeadLetterFileField.ERROR: result.error,
            DeadLetterFileField.RETRYABLE: result.retryable,
            DeadLetterFileField.AT: format_rfc3339(at_ms),
        }
    )


def dead_letter_line(dead_letter: WebhookDeadLetter, at_ms: int) -> bytes:
    """The JSON line of a dead letter: all that a replay needs, but no secret or signature."""
    line: dict[str, Any] = {
        DeadLetterFileField.EVENT_ID: dead_letter.event_id,
        DeadLetterFileField.EVENT_TYPE: dead_letter.event_type,
        DeadLetterFileField.JOB_ID: dead_letter.job_id,
        DeadLetterFileField.URL: dead_letter.url,
        DeadLetterFileField.FAILED_AT: format_rfc3339(at_ms),
        DeadLetterFileField.PAYLOAD: orjson.Fragment(dead_letter.body),
        DeadLetterFileField.ATTEMPTS: dead_letter.attempts,
        DeadLetterFileField.DETAIL: orjson.Fragment(dead_letter.detail),
        DeadLetterFileField.REPLAY: {
            DeadLetterFileField.METHOD: "POST",
            DeadLetterFileField.URL: dead_letter.url,
            DeadLetterFileField.HEADERS: FIXED_HEADERS,
            DeadLetterFileField.BODY_BASE64: base64.b64encode(dead_letter.body).decode(),
            DeadLetterFileField.ENCODING: "utf-8",
        },
    }
    return codec.dumps(line)


def redrive_line(event_id: str, ok: bool, at_ms: int) -> bytes:
    """The JSON line about the outcome of a redrive."""
    return codec.dumps(
        {
            DeadLetterFileField.REDRIVEN_AT: format_rfc3339(at_ms),
            DeadLetterFileField.EVENT_ID: event_id,
            DeadLetterFileField.OK: ok,
        }
    )

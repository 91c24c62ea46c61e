"""The file of deliveries that were given up: one line of JSON each, never torn, never too long."""

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

from common import codec
from common.contracts.webhooks import DeadLetterFileField
from common.features.workflows.webhooks.dead_letters import WebhookDeadLetter
from worker.features.webhooks.request import FIXED_HEADERS, format_rfc3339
from worker.features.webhooks.sender import DeliveryResult

log = logging.getLogger(__name__)

#: From here on a new file is begun.
MOST_BYTES: Final = 64 << 20
#: Older files that are kept, as `….1` (the newest) and so on.
ROTATED_FILES: Final = 4
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_NEWLINE: Final = b"\n"


class DeadLetterFile:
    """Many processes may append to it: each holds a lock on the file while it does."""

    def __init__(self, path: str | Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = Path(path)
        self._most_bytes = most_bytes

    def append(self, line: bytes) -> bool:
        """Add a line, and see it on the disk; False where that cannot be, which is logged."""
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            with self._locked() as file:
                _write(file, line.rstrip(_NEWLINE) + _NEWLINE)
                if os.fstat(file).st_size <= len(line) + 1:
                    _sync_directory(self._path.parent)
        except OSError as error:
            log.error(
                "a webhook that was given up cannot be written to %s: %s; see "
                "WORKFLOW_WEBHOOK_DLQ_PATH",
                self._path,
                error,
            )
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, ours alone, with room for a line."""
        while True:
            file = os.open(self._path, _FLAGS, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not self._is_current(file):  # it was set aside while we waited
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
            named = os.stat(self._path)
        except FileNotFoundError:
            return False
        held = os.fstat(file)
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

    def _rotate(self) -> None:
        for number in range(ROTATED_FILES, 0, -1):
            older = self._rotated_path(number - 1)
            if older.exists():
                os.replace(older, self._rotated_path(number))

    def _rotated_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _write(file: int, line: bytes) -> None:
    """In one piece or not at all; what a power cut left half is ended first."""
    size = os.fstat(file).st_size
    torn = size > 0 and os.pread(file, 1, size - 1) != _NEWLINE
    whole = _NEWLINE + line if torn else line
    written = os.write(file, whole)
    if written < len(whole):
        os.ftruncate(file, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file)


def _sync_directory(path: Path) -> None:
    """A new file's name is not on the disk before its directory is."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def attempt_detail(number: int, attempted: DeliveryResult, at_ms: int) -> bytes:
    """One attempt, as letters tell of it."""
    return codec.dumps(
        {
            DeadLetterFileField.ATTEMPT: number,
            DeadLetterFileField.STATUS: attempted.status,
            DeadLetterFileField.ERROR: attempted.error,
            DeadLetterFileField.RETRYABLE: attempted.retryable,
            DeadLetterFileField.AT: format_rfc3339(at_ms),
        }
    )


def dead_letter_line(letter: WebhookDeadLetter, at_ms: int) -> bytes:
    """All that it takes to send it again by other means. Never the secret, nor what it signed."""
    line: dict[str, Any] = {
        DeadLetterFileField.EVENT_ID: letter.event_id,
        DeadLetterFileField.EVENT_TYPE: letter.event_type,
        DeadLetterFileField.JOB_ID: letter.job_id,
        DeadLetterFileField.URL: letter.url,
        DeadLetterFileField.FAILED_AT: format_rfc3339(at_ms),
        DeadLetterFileField.PAYLOAD: orjson.Fragment(letter.body),
        DeadLetterFileField.ATTEMPTS: letter.attempts,
        DeadLetterFileField.DETAIL: orjson.Fragment(letter.detail),
        DeadLetterFileField.REPLAY: {
            DeadLetterFileField.METHOD: "POST",
            DeadLetterFileField.URL: letter.url,
            DeadLetterFileField.HEADERS: FIXED_HEADERS,
            DeadLetterFileField.BODY_BASE64: base64.b64encode(letter.body).decode(),
            DeadLetterFileField.ENCODING: "utf-8",
        },
    }
    return codec.dumps(line)


def redrive_line(event_id: str, ok: bool, at_ms: int) -> bytes:
    """What became of sending it again."""
    return codec.dumps(
        {
            DeadLetterFileField.REDRIVEN_AT: format_rfc3339(at_ms),
            DeadLetterFileField.EVENT_ID: event_id,
            DeadLetterFileField.OK: ok,
        }
    )

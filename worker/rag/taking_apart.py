"""Has HTML and PDF taken apart by a process of their own that can be killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Final

from worker import child
from worker.rag import reading_child
from worker.rag.errors import UnreadableDocument
from worker.rag.html_text import Extract
from worker.rag.reading_child import FAULT, TEXT, TITLE, WALL_S
from worker.threads import call_in_thread

_TOO_MUCH: Final = "it takes too much time or memory to read; send a smaller one, or its plain text"


class TakingApart:
    """Runs one such process at a time: each may take half a gigabyte."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def extract(self, kind: str, raw: bytes, most_chars: int) -> Extract:
        """The text and title of a document. Canceled, the process is gone as well."""
        async with self._turn:
            run = _Run(kind, raw, most_chars)
            try:
                output: bytes = await call_in_thread(run.run)
            except asyncio.CancelledError:
                run.kill()
                raise
        try:
            answer = json.loads(output)
        except ValueError:
            raise UnreadableDocument(_TOO_MUCH) from None
        if FAULT in answer:
            raise UnreadableDocument(answer[FAULT])
        return Extract(answer[TEXT], answer[TITLE])


class _Run:
    """One process, waited for in a thread; killed from anywhere."""

    def __init__(self, kind: str, raw: bytes, most_chars: int) -> None:
        self._arguments = (kind, str(most_chars))
        self._raw = raw
        self._child: subprocess.Popen[bytes] | None = None
        self._unwanted = False

    def kill(self) -> None:
        self._unwanted = True
        if self._child is not None:
            self._child.kill()

    def run(self) -> bytes:
        """What the process said; nothing where it was killed."""
        with child.start(reading_child.__name__, *self._arguments) as process:
            self._child = process
            if self._unwanted:
                process.kill()
            try:
                return process.communicate(self._raw, WALL_S)[0]
            except subprocess.TimeoutExpired:
                return b""
            finally:
                process.kill()

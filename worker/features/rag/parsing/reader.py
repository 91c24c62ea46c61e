"""Reads documents of any supported type into plain text."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from email.message import Message
from functools import partial
from typing import Final, NamedTuple

from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.execution.process_pool import confine
from sluice.worker.features.rag.errors import DocumentTooLong, UnreadableDocument, UnsupportedMedia
from sluice.worker.features.rag.parsing import child as reading_child
from sluice.worker.features.rag.parsing import encoding, outline
from sluice.worker.features.rag.parsing.child import FAULT, HTML, PDF, TEXT, TITLE, WALL_S
from sluice.worker.features.rag.parsing.html import ExtractedText, declared_charset

_LIMIT_EXCEEDED: Final = (
    "reading it takes too much time or memory; send a smaller one, or plain text"
)


class SandboxedParser:
    """Parses documents in child processes, one at a time: each may use half a gigabyte."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def extract(self, kind: str, raw: bytes, most_chars: int) -> ExtractedText:
        """Text and title of a document. A cancellation kills the process."""
        async with self._lock:
            run = _ParserProcess(kind, raw, most_chars)
            try:
                output: bytes = await call_in_thread(run.run)
            except asyncio.CancelledError:
                run.kill()
                raise
        try:
            answer = json.loads(output)
        except ValueError:
            raise UnreadableDocument(_LIMIT_EXCEEDED) from None
        if FAULT in answer:
            raise UnreadableDocument(answer[FAULT])
        return ExtractedText(answer[TEXT], answer[TITLE])


class _ParserProcess:
    """One process, awaited in a thread; may be killed from any thread."""

    def __init__(self, kind: str, raw: bytes, most_chars: int) -> None:
        self._arguments = (kind, str(most_chars))
        self._raw = raw
        self._child: subprocess.Popen[bytes] | None = None
        self._killed = False

    def kill(self) -> None:
        self._killed = True
        if self._child is not None:
            self._child.kill()

    def run(self) -> bytes:
        """Output of the process; empty if it was killed."""
        with confine.start_process(reading_child.__name__, *self._arguments) as process:
            self._child = process
            if self._killed:
                process.kill()
            try:
                return process.communicate(self._raw, WALL_S)[0]
            except subprocess.TimeoutExpired:
                return b""
            finally:
                process.kill()


#: Longest text of a document, in bytes of UTF-8.
MOST_BYTES: Final = 5_000_000
TITLE_CHARS: Final = 200

TEXT_PLAIN, TEXT_MARKDOWN, TEXT_HTML = "text/plain", "text/markdown", "text/html"
APPLICATION_PDF: Final = "application/pdf"
MEDIA_TYPES: Final = (TEXT_PLAIN, TEXT_MARKDOWN, TEXT_HTML, APPLICATION_PDF)
_ALIASES: Final = {
    "text/x-markdown": TEXT_MARKDOWN,
    "application/xhtml+xml": TEXT_HTML,
    "application/x-pdf": APPLICATION_PDF,
}
#: Types that say nothing; the type is then detected from the content.
_UNSPECIFIED: Final = ("", "application/octet-stream")
_PDF_MARK: Final = b"%PDF-"
_HTML_MARK: Final = re.compile(rb"\s*(<!doctype\s+html|<html[\s>])", re.I)


class ParsedDocument(NamedTuple):
    """Text of a document as stored, its title and its media type."""

    text: str
    title: str
    media_type: str


class DocumentReader:
    """Converts documents to plain text."""

    def __init__(self) -> None:
        self._parser = SandboxedParser()

    async def read(
        self, content: str | bytes, media_type: str = "", title: str = ""
    ) -> ParsedDocument:
        """Parse `content`. Raises UnreadableDocument, UnsupportedMedia or DocumentTooLong."""
        kind, charset = _parse_media_type(media_type)
        if kind in _UNSPECIFIED:
            kind = _sniff(content) if isinstance(content, bytes) else TEXT_PLAIN
        found = await self._extract(content, kind, charset)
        if not found.text.strip():
            raise UnreadableDocument("the document contains no text")
        size = len(found.text.encode())
        if size > MOST_BYTES:
            raise DocumentTooLong(
                f"the document's text has {size} bytes, {MOST_BYTES} at most; send it in parts"
            )
        own = title or found.title
        if not own:
            name = partial(outline.title, found.text, marked=has_markup(kind))
            own = await call_in_thread(name)
        return ParsedDocument(found.text, " ".join(own.split())[:TITLE_CHARS].strip(), kind)

    async def _extract(self, content: str | bytes, kind: str, charset: str) -> ExtractedText:
        if kind == APPLICATION_PDF:
            if isinstance(content, str):
                raise UnsupportedMedia("a PDF cannot be sent as text; upload the file itself")
            return await self._parser.extract(PDF, content, MOST_BYTES)
        if kind not in MEDIA_TYPES:
            raise UnsupportedMedia(
                f"{kind[:80]!r} is not supported; supported types: {', '.join(MEDIA_TYPES)}"
            )
        if isinstance(content, str):
            text = encoding.check_text(content)
        else:
            if kind == TEXT_HTML:
                charset = charset or declared_charset(content)
            text = encoding.decode(content, charset)
        if kind == TEXT_HTML:
            return await self._parser.extract(HTML, text.encode(), MOST_BYTES)
        return ExtractedText(text, "")


def has_markup(media_type: str) -> bool:
    """True if the text of such a document marks headings as in Markdown."""
    return media_type in (TEXT_MARKDOWN, TEXT_HTML)


def _parse_media_type(media_type: str) -> tuple[str, str]:
    """The media type without parameters, and its charset."""
    header = Message()
    header["content-type"] = " ".join(media_type.split())
    charset = header.get_param("charset") or ""
    kind = media_type.partition(";")[0].strip().lower()
    return _ALIASES.get(kind, kind), charset if isinstance(charset, str) else ""


def _sniff(raw: bytes) -> str:
    if _PDF_MARK in raw[:1024]:
        return APPLICATION_PDF
    return TEXT_HTML if _HTML_MARK.match(raw[:1024]) else TEXT_PLAIN

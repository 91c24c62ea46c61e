"""From a document of any type to one plain text, in which spans are counted."""

from __future__ import annotations

import re
from email.message import Message
from functools import partial
from typing import Final, NamedTuple

from worker.rag import decoding, outline
from worker.rag.errors import DocumentTooLong, UnreadableDocument, UnsupportedMedia
from worker.rag.html_text import Extract, declared_charset
from worker.rag.reading_child import HTML, PDF
from worker.rag.taking_apart import TakingApart
from worker.threads import call_in_thread

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
#: Types that say nothing: the content is looked at.
_UNTOLD: Final = ("", "application/octet-stream")
_PDF_MARK: Final = b"%PDF-"
_HTML_MARK: Final = re.compile(rb"\s*(<!doctype\s+html|<html[\s>])", re.I)


class Reading(NamedTuple):
    """A document's text as it is stored, its title, and what it was read from."""

    text: str
    title: str
    media_type: str


class Reader:
    """Reads documents."""

    def __init__(self) -> None:
        self._apart = TakingApart()

    async def read(self, content: str | bytes, media_type: str = "", title: str = "") -> Reading:
        """The text of `content`; raises what is wrong with it."""
        kind, charset = _parse(media_type)
        if kind in _UNTOLD:
            kind = _sniff(content) if isinstance(content, bytes) else TEXT_PLAIN
        found = await self._extract(content, kind, charset)
        if not found.text.strip():
            raise UnreadableDocument("the document holds no text")
        size = len(found.text.encode())
        if size > MOST_BYTES:
            raise DocumentTooLong(
                f"the document's text has {size} bytes, {MOST_BYTES} at most; send it in parts"
            )
        own = title or found.title
        if not own:
            name = partial(outline.title, found.text, marked=is_marked(kind))
            own = await call_in_thread(name)
        return Reading(found.text, " ".join(own.split())[:TITLE_CHARS].strip(), kind)

    async def _extract(self, content: str | bytes, kind: str, charset: str) -> Extract:
        if kind == APPLICATION_PDF:
            if isinstance(content, str):
                raise UnsupportedMedia("a PDF is no text; upload the file itself")
            return await self._apart.extract(PDF, content, MOST_BYTES)
        if kind not in MEDIA_TYPES:
            raise UnsupportedMedia(
                f"{kind[:80]!r} is not read here; there are {', '.join(MEDIA_TYPES)}"
            )
        if isinstance(content, str):
            text = decoding.checked(content)
        else:
            if kind == TEXT_HTML:
                charset = charset or declared_charset(content)
            text = decoding.decode(content, charset)
        if kind == TEXT_HTML:
            return await self._apart.extract(HTML, text.encode(), MOST_BYTES)
        return Extract(text, "")


def is_marked(media_type: str) -> bool:
    """Whether headings are marked in the text of such a document."""
    return media_type in (TEXT_MARKDOWN, TEXT_HTML)


def _parse(media_type: str) -> tuple[str, str]:
    """A media type without its parameters, and the encoding that they name."""
    header = Message()
    header["content-type"] = " ".join(media_type.split())
    charset = header.get_param("charset") or ""
    kind = media_type.partition(";")[0].strip().lower()
    return _ALIASES.get(kind, kind), charset if isinstance(charset, str) else ""


def _sniff(raw: bytes) -> str:
    if _PDF_MARK in raw[:1024]:
        return APPLICATION_PDF
    return TEXT_HTML if _HTML_MARK.match(raw[:1024]) else TEXT_PLAIN

"""The text of a PDF file, by pypdf; imported only in the process that takes documents apart."""

from __future__ import annotations

import io
import logging
from typing import Any

from worker.features.rag.parsing.html import ExtractedText


class UnreadablePdf(Exception):
    """Why a document cannot be read, in words for whoever sent it."""


def extract_pdf(raw: bytes, most_chars: int) -> ExtractedText:
    """The text of all pages, an empty line between two; stops early beyond `most_chars`."""
    try:
        from pypdf import PdfReader
    except ImportError:
        raise UnreadablePdf("PDF needs the extra `rag`: pip install 'sluice[rag]'") from None
    logging.disable(logging.CRITICAL)  # it tells of every oddity
    reader = PdfReader(io.BytesIO(raw))
    if reader.is_encrypted and not _decrypts(reader):
        raise UnreadablePdf("the PDF is encrypted; send it without its password")
    pages: list[str] = []
    chars = failed = 0
    for page in reader.pages:
        try:
            text = page.extract_text().strip()
        except MemoryError:
            raise
        except Exception:  # one broken page is no reason to drop the others
            failed += 1
            continue
        if text:
            pages.append(text)
            chars += len(text)
            if chars > most_chars:
                break
    if not pages and failed:
        raise UnreadablePdf("none of the PDF's pages can be read; it is broken")
    if not pages:
        raise UnreadablePdf(
            "the PDF holds no text; if it is scanned, let an OCR program read it first"
        )
    return ExtractedText("\n\n".join(pages), _title(reader))


def _decrypts(reader: Any) -> bool:
    """Whether it is encrypted without a password, as some programs do."""
    try:
        return bool(reader.decrypt(""))
    except Exception:  # it needs a cipher that is not installed
        return False


def _title(reader: Any) -> str:
    try:
        return str(reader.metadata.title or "")
    except Exception:  # metadata is the first thing to be broken, and the last to be missed
        return ""

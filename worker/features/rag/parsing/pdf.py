"""Text of a PDF file, by pypdf; imported only in the parsing child process."""

from __future__ import annotations

import io
import logging
from typing import Any

from sluice.worker.features.rag.parsing.html import ExtractedText


class UnreadablePdf(Exception):
    """Why a PDF cannot be read; the message is for the client."""


def extract_pdf(raw: bytes, most_chars: int) -> ExtractedText:
    """Text of all pages, separated by empty lines; stops once it exceeds `most_chars`."""
    try:
        from pypdf import PdfReader
    except ImportError:
        raise UnreadablePdf("PDF needs the extra `rag`: pip install 'sluice[rag]'") from None
    logging.disable(logging.CRITICAL)  # pypdf logs every irregularity
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
        except Exception:  # skip broken pages
            failed += 1
            continue
        if text:
            pages.append(text)
            chars += len(text)
            if chars > most_chars:
                break
    if not pages and failed:
        raise UnreadablePdf("no page of the PDF can be read; the file is damaged")
    if not pages:
        raise UnreadablePdf("the PDF contains no text; if it is scanned, run OCR on it first")
    return ExtractedText("\n\n".join(pages), _title(reader))


def _decrypts(reader: Any) -> bool:
    """True if it opens with an empty password, as some programs produce."""
    try:
        return bool(reader.decrypt(""))
    except Exception:  # the cipher is not installed
        return False


def _title(reader: Any) -> str:
    try:
        return str(reader.metadata.title or "")
    except Exception:  # metadata is often broken
        return ""

"""Decodes sources to text; converts JSON and CSV to lines, and detects the language."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from dataclasses import dataclass
from typing import Any, Final

from sluice.common import codec
from sluice.common.features.workflows.memory_first import MOST_FILE_BYTES
from sluice.worker.features.rag.errors import UnreadableDocument
from sluice.worker.features.rag.parsing import encoding
from sluice.worker.features.rag.parsing.html import declared_charset
from sluice.worker.features.rag.parsing.reader import TEXT_HTML
from sluice.worker.features.rag.text.languages import ENGLISH, detect_language
from sluice.worker.features.workflows.memory_first.sources.files import CSV, JSON

#: Assumed encoding of bytes that are not UTF-8 and declare no encoding.
_USUAL_CHARSET: Final = "windows-1252"
_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_CELL: Final = " | "
_SAMPLE_CHARS: Final = 20_000
#: Scripts that identify a language.
_SCRIPTS: Final = (
    ("ja", re.compile("[\u3040-\u30ff]")),
    ("ko", re.compile("[\u1100-\u11ff\uac00-\ud7af]")),
    ("zh", re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")),
    ("ar", re.compile("[\u0600-\u06ff]")),
    ("he", re.compile("[\u0590-\u05ff]")),
    ("th", re.compile("[\u0e00-\u0e7f]")),
    ("el", re.compile("[\u0370-\u03ff]")),
    ("hi", re.compile("[\u0900-\u097f]")),
)
_LETTER: Final = re.compile(r"[^\W\d_]")
#: Minimum fraction of letters; Japanese is mostly written with Chinese characters, so little kana
#: is enough.
_LEAST_SHARE: Final = {"ja": 0.1}
_USUAL_SHARE: Final = 0.3


@dataclass(frozen=True)
class TextInfo:
    """Digest, language and size of a text."""

    sha256: str
    lang: str
    chars: int
    bytes: int


def describe_text(text: str) -> TextInfo:
    raw = text.encode()
    return TextInfo(
        hashlib.sha256(raw).hexdigest(), detect_source_language(text), len(text), len(raw)
    )


def detect_source_language(text: str) -> str:
    """The most likely language of a text, by its script or its stopwords."""
    sample = text[:_SAMPLE_CHARS]
    letters = len(_LETTER.findall(sample))
    for name, script in _SCRIPTS:
        if len(script.findall(sample)) > letters * _LEAST_SHARE.get(name, _USUAL_SHARE):
            return name
    return detect_language(text) if letters else ENGLISH


def guess_charset(raw: bytes, media_type: str, declared: str = "") -> str:
    """The encoding to pass to the document reader; empty if the reader detects it."""
    if declared or raw.startswith(_MARKS):
        return declared
    try:
        raw.decode()
    except UnicodeDecodeError:
        if media_type == TEXT_HTML and declared_charset(raw):
            return ""
        return _USUAL_CHARSET
    return ""


def json_to_text(raw: bytes, charset: str = "") -> str:
    """A JSON document as lines: prose as it is, other values after their names."""
    text = encoding.decode(raw, charset)
    try:
        value = codec.loads(text.encode())
    except (ValueError, RecursionError) as error:
        raise UnreadableDocument(f"invalid JSON: {str(error)[:200]}") from None
    lines = []
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        name, each = left.pop()
        if isinstance(each, dict):
            left.extend((str(key), each[key]) for key in reversed(each))
        elif isinstance(each, list):
            left.extend((name, item) for item in reversed(each))
        elif each not in (None, ""):
            line = _one_line(each if isinstance(each, str) else codec.dumps(each).decode())
            lines.append(line if " " in line or not name else f"{_one_line(name)}: {line}")
    return _check_text("\n".join(each for each in lines if each))


def csv_to_text(raw: bytes, charset: str = "") -> str:
    """A table as lines, with bars between cells."""
    text = encoding.decode(raw, charset)
    rows: list[str] = []
    csv.field_size_limit(MOST_FILE_BYTES)
    try:
        dialect = _delimiter(text[:_SAMPLE_CHARS])
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=dialect):
            cells = [_one_line(cell) for cell in row]
            if any(cells):
                rows.append(_CELL.join(cells))
    except csv.Error as error:
        raise UnreadableDocument(f"invalid CSV: {str(error)[:200]}") from None
    return _check_text("\n".join(rows))


def to_plain_text(raw: bytes, media_type: str, charset: str = "") -> str:
    """The text of a source in a type that the document reader does not support."""
    if media_type == JSON:
        return json_to_text(raw, charset)
    assert media_type == CSV, media_type
    return csv_to_text(raw, charset)


def _delimiter(sample: str) -> str:
    """The delimiter: the most frequent candidate in the first line."""
    first = sample.partition("\n")[0]
    return max((",", ";", "\t"), key=first.count)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _check_text(text: str) -> str:
    """Replace characters that JSON allows and documents do not."""
    text = encoding.check_text(text.replace("\0", " ").encode("utf-8", "replace").decode())
    if not text.strip():
        raise UnreadableDocument("the document contains no text")
    return text

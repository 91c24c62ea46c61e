"""Decodes documents: detects the encoding and rejects content that is not text."""

from __future__ import annotations

import codecs
import re
from typing import Final

from sluice.worker.features.rag.errors import UnreadableDocument

#: Order matters: the byte order mark of UTF-32-LE begins with that of UTF-16-LE.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: Accepted encodings, by Python's names. Python has others that are slow or not for text.
_TEXT: Final = re.compile(
    r"(ascii|utf-(8|16|32)(-[bl]e)?|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|shift_jis\w*|euc_\w+"
    r"|gb2312|gbk|gb18030|big5\w*|iso2022_\w+|johab|tis-620|hz)\Z"
)
_BOM: Final = "\ufeff"


def decode(raw: bytes, charset: str = "") -> str:
    """Decode by byte order mark, as UTF-8, or as `charset`. Raises UnreadableDocument."""
    for mark, name in _MARKS:
        if raw.startswith(mark):
            return check_text(_try_decode(raw[len(mark) :], name))
    known = _known_codec(charset)
    wide = known.startswith(("utf-16", "utf-32"))
    try:
        if not wide:
            return check_text(raw.decode())
    except UnicodeDecodeError as error:
        if not known or known == "utf-8":
            raise UnreadableDocument(
                f"byte {error.start} is not UTF-8; send it as UTF-8, or name its encoding, as in "
                "`text/plain; charset=iso-8859-1`"
            ) from None
    return check_text(_try_decode(raw, known))


def check_text(text: str) -> str:
    """Return `text` without a byte order mark. Raises UnreadableDocument for NUL and surrogates."""
    text = text.removeprefix(_BOM)
    where = text.find("\0")
    if where >= 0:
        raise UnreadableDocument(
            f"character {where} is NUL; this is not text, or it has another encoding"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnreadableDocument(f"character {error.start} is an unpaired surrogate") from None
    return text


def _known_codec(charset: str) -> str:
    if not charset:
        return ""
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        name = ""
    if not _TEXT.match(name):
        raise UnreadableDocument(f"{charset[:40]!r} is not a text encoding; send UTF-8")
    return name


def _try_decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode(name)
    except UnicodeError as error:
        raise UnreadableDocument(
            f"the document is not valid {name}, its declared encoding: {error}"
        ) from None

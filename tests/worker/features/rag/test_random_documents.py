"""Random and damaged documents: text or a refusal, within a short time."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sluice.worker.features.rag.errors import UnreadableDocument
from sluice.worker.features.rag.parsing.encoding import check_text, decode
from sluice.worker.features.rag.parsing.html import declared_charset, extract_html
from sluice.worker.features.rag.parsing.pdf import extract_pdf
from tests.support.files.pdfs import pdf

USUAL = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
#: Much longer than any small document needs, even on a busy machine.
MOST_S = 5.0
TAGS = ["p", "h1", "h7", "pre", "ul", "li", "tr", "td", "title", "script", "svg", "br", "body"]
MARKUP = st.one_of(
    st.sampled_from(TAGS).map("<{}>".format),
    st.sampled_from(TAGS).map("</{}>".format),
    st.sampled_from(
        [
            *("<!--", "-->", "<![CDATA[", "]]>", "<?", "<!DOCTYPE", "<", "</", "<p", "'", '"', "="),
            *("&#0;", "&#xD800;", "&#99999999999;", "&amp", "&", "<p hidden>", "<p style='a:b'>"),
            *('<meta charset="', "<p " + "a=b " * 50 + ">", "\x00", "\u2028", "\ud800"),
        ]
    ),
    st.text(max_size=8),
)


@settings(USUAL, max_examples=200)
@given(st.lists(MARKUP, max_size=40).map("".join))
@example("<ul>" * 3000 + "x" + "</ul>" * 3000)
@example("<" * 20_000)
@example("<!--" * 5_000)
@example("<a " + "b='" * 5_000)
@example("<![" * 5_000)
@example("&#" * 5_000)
def test_any_page_has_text(source: str) -> None:
    began = time.process_time()
    found = extract_html(source)
    assert len(found.text) <= 8 * len(source) + 8
    assert time.process_time() - began < MOST_S


@settings(USUAL, max_examples=300)
@given(
    st.binary(max_size=60),
    st.sampled_from(["", "utf-8", "utf-16", "utf-7", "idna", "rot13", "cp037", "hz", "iso2022_kr"])
    | st.text(max_size=12),
)
def test_any_bytes_are_text_or_refused(raw: bytes, charset: str) -> None:
    with contextlib.suppress(UnreadableDocument):
        text = decode(raw, charset)
        assert check_text(text) == text.removeprefix("\ufeff")
        assert "\0" not in text


@USUAL
@given(st.binary(max_size=200))
def test_any_charset_declaration_is_a_name(raw: bytes) -> None:
    assert len(declared_charset(b"<meta charset=" + raw)) <= 40


def damage(changed: bytearray, data: Any) -> bytes:
    """A file with some faults, as of a broken transfer or of an attacker."""
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(changed)))
        kind = data.draw(st.sampled_from(("bytes", "cut", "insert", "number", "copy")))
        if kind == "bytes":
            new = data.draw(st.binary(min_size=1, max_size=4))
            changed[at : at + len(new)] = new
        elif kind == "cut":
            del changed[at : at + data.draw(st.integers(1, 100))]
        elif kind == "insert":
            changed[at:at] = data.draw(PDF_PIECES)
        elif kind == "number":
            digits = [place for place, byte in enumerate(changed) if 48 <= byte < 58]
            if digits:
                changed[data.draw(st.sampled_from(digits))] = data.draw(st.integers(48, 57))
        else:
            changed[at:at] = changed[: data.draw(st.integers(0, 300))]
    return bytes(changed)


PDF_PIECES = st.sampled_from(
    [
        *(b"<<", b">>", b"[", b"(", b"\\", b"<", b"/", b"%", b"stream\n", b"endstream", b"endobj"),
        *(b"1 0 R", b"2 0 R", b"99999999999 0 R", b"/Length 99999999999", b"/Filter /LZWDecode"),
        *(b"/Filter [/FlateDecode /FlateDecode]", b"/Prev 9", b"/Kids [2 0 R]", b"/Encrypt 4 0 R"),
        *(b"[" * 500, b"<<" * 500, b"trailer", b"startxref\n0\n", b"/Type /ObjStm", b"-1"),
    ]
)


@pytest.fixture
def logging_enabled_again() -> Iterator[None]:
    """The function that reads PDF files disables logging, which is meant for a child process."""
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("logging_enabled_again")
@settings(USUAL, max_examples=120)
@given(st.booleans(), st.data())
def test_damaged_pdf_files(compressed: bool, data: st.DataObject) -> None:
    """pypdf raises errors of many types; the parsing process reports each as a refusal."""
    whole = pdf("The first page", "The second page", title="A title", compress=compressed)
    raw = damage(bytearray(whole), data)
    began = time.process_time()
    text = "none"
    with contextlib.suppress(Exception):
        text = extract_pdf(raw, 10_000).text
    assert 0 < len(text) < 100_000
    assert time.process_time() - began < MOST_S

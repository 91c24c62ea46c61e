"""HTML to plain text; headings, list items and cells are marked as in Markdown."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final, NamedTuple


def _name_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
#: Elements separated by an empty line, and by a line break.
_BLOCKS: Final = _name_set(
    "address article aside blockquote body caption details dialog div dl fieldset figcaption "
    "figure footer form header hgroup hr html legend main menu nav ol p pre section summary table "
    "ul h1 h2 h3 h4 h5 h6"
)
_LINES: Final = _name_set("br dd dt li optgroup option tbody tfoot thead tr")
_CELLS: Final = frozenset(("td", "th"))
_CELL: Final = " | "
#: Elements whose content is not shown as text.
_UNSEEN: Final = _name_set(
    "script style template noscript svg math iframe object canvas audio video select datalist"
)
_VOID: Final = _name_set("area base br col embed hr img input link meta source track wbr")
_CHARSET: Final = re.compile(
    rb"""<meta[^>]{0,200}?charset\s{0,9}=\s{0,9}["']?\s{0,9}([\w.:-]{1,40})""", re.I
)


class ExtractedText(NamedTuple):
    """Text of a document, and its own title."""

    text: str
    title: str


def declared_charset(raw: bytes) -> str:
    """The encoding declared in the head of a page."""
    match = _CHARSET.search(raw[:4096])
    return match[1].decode("ascii", "replace") if match else ""


def extract_html(source: str) -> ExtractedText:
    reader = _HtmlExtractor()
    reader.feed(source)
    reader.close()
    return reader.extract()


class _HtmlExtractor(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        #: Line breaks, or a space, to write before the next word.
        self._breaks = 0
        self._space = False
        #: Mark to write before the next word: of a heading, an item or a cell.
        self._mark = ""
        self._preformatted = 0
        self._lists = 0
        #: The element that hides everything within it, and how many of its name are open.
        self._hiding = ""
        self._hidden_depth = 0
        self._in_title = False
        self._title: list[str] = []
        self._heading: list[str] | None = None
        self._first_heading = ""

    def extract(self) -> ExtractedText:
        title = " ".join("".join(self._title).split()) or self._first_heading
        return ExtractedText("".join(self._parts), title)

    # -- HTMLParser -------------------------------------------------------------------------------

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hiding:
            self._hidden_depth += tag == self._hiding
            return
        if tag not in _VOID and (tag in _UNSEEN or _is_hidden(attrs)):
            self._hiding, self._hidden_depth = tag, 1
            return
        if tag == "title" and not self._title:
            self._in_title = True
        elif tag in _BLOCKS:
            self._begin_block(tag)
        elif tag in _LINES:
            self._break(1)
            if tag == "li":
                self._mark = "- "
        elif tag in _CELLS:
            self._mark = "" if self._at_line_start else _CELL

    def handle_endtag(self, tag: str) -> None:
        if self._hiding:
            self._hidden_depth -= tag == self._hiding
            if not self._hidden_depth:
                self._hiding = ""
            return
        if tag == "title":
            self._in_title = False
        elif tag in _BLOCKS:
            self._end_block(tag)
        elif tag in _LINES:
            self._mark = ""
            self._break(1)
        elif tag in _CELLS:
            self._mark = ""

    def handle_data(self, data: str) -> None:
        if self._hiding:
            return
        if self._in_title:
            self._title.append(data)
        elif self._preformatted:
            self._write_verbatim(data)
        else:
            self._write_text(data)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Skip an invalid `<![…`, as browsers do; HTMLParser of Python 3.13 raises."""
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:
            return self.parse_bogus_comment(i)

    # -- output -----------------------------------------------------------------------------------

    @property
    def _at_line_start(self) -> bool:
        return not self._parts or self._breaks > 0

    def _begin_block(self, tag: str) -> None:
        inner = tag in ("ul", "ol", "menu") and self._lists
        self._break(1 if inner else 2)
        if tag in _HEADINGS:
            self._mark = "#" * _HEADINGS[tag] + " "
            self._heading = []
        elif tag == "pre":
            self._preformatted += 1
        elif tag in ("ul", "ol", "menu"):
            self._lists += 1

    def _end_block(self, tag: str) -> None:
        if tag in _HEADINGS and self._heading is not None:
            self._first_heading = self._first_heading or " ".join("".join(self._heading).split())
            self._heading, self._mark = None, ""
        elif tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        elif tag in ("ul", "ol", "menu"):
            self._lists = max(0, self._lists - 1)
        inner = tag in ("ul", "ol", "menu") and self._lists
        self._break(1 if inner else 2)

    def _break(self, lines: int) -> None:
        if self._parts:
            self._breaks = max(self._breaks, lines)
        self._space = False

    def _write_text(self, data: str) -> None:
        words = data.split()
        if not words:
            self._space = self._space or bool(data)
            return
        if data[0].isspace():
            self._space = True
        self._put(" ".join(words))
        self._space = data[-1].isspace()

    def _write_verbatim(self, data: str) -> None:
        data = data.expandtabs(4).replace("\r\n", "\n")
        if self._at_line_start:
            data = data.lstrip("\n")
        kept = data.rstrip("\n")
        if kept:
            self._put(kept)
        if len(data) > len(kept):
            self._break(1)

    def _put(self, words: str) -> None:
        if self._heading is not None:
            self._heading += [" ", words] if self._space else [words]
        if self._breaks:
            self._parts.append("\n" * self._breaks)
            self._mark = "" if self._mark == _CELL else self._mark
        elif self._space and self._parts and self._mark != _CELL:
            self._parts.append(" ")
        self._parts += [self._mark, words] if self._mark else [words]
        self._breaks, self._space, self._mark = 0, False, ""


def _is_hidden(attrs: list[tuple[str, str | None]]) -> bool:
    """True if the page hides an element; such text is often aimed at machines."""
    for name, value in attrs:
        if name == "hidden" or (name == "aria-hidden" and value == "true"):
            return True
        if name == "style" and value and "display:none" in value.replace(" ", "").lower():
            return True
    return False

"""Finds entities by rules: dates, addresses, code, names and acronyms."""

from __future__ import annotations

import datetime
import re
from collections.abc import Container, Iterator, Sequence
from functools import lru_cache
from typing import Final

from sluice.worker.features.workflows.memory_first.text.stopwords import word_set
from sluice.worker.features.workflows.memory_first.text.tokens import Token

ACRONYM, NAME, DATE, EMAIL, URL = "acronym", "name", "date", "email", "url"
IDENTIFIER, CODE = "identifier", "code"
KINDS: Final = (ACRONYM, NAME, DATE, EMAIL, URL, IDENTIFIER, CODE)

#: Words allowed between the capitalised words of a name.
_BETWEEN: Final = word_set("of the and for de la le du des von van der den zu di da del y")
_MOST_NAME_WORDS: Final = 6
_MOST_CODE_CHARS: Final = 80
_LEAST_LETTERS: Final = 2
_ACRONYM: Final = re.compile(r"[A-Z][A-Z0-9&]{1,7}\Z")
_INNER_CAPITAL: Final = re.compile(r"[a-z0-9][A-Z]")
_WORDLIKE: Final = re.compile(r"[a-z][a-z'’-]*\Z")
_TRAILING: Final = ".,;:!?'\"…*"
_MONTHS: Final = {
    name: number
    for number, names in enumerate(
        (
            "january jan januar janvier enero",
            "february feb februar février febrero",
            "march mar märz mars marzo",
            "april apr avril abril",
            "may mai mayo",
            "june jun juni juin junio",
            "july jul juli juillet julio",
            "august aug août agosto",
            "september sep sept septembre septiembre",
            "october oct oktober okt octobre octubre",
            "november nov novembre noviembre",
            "december dec dezember dez décembre diciembre",
        ),
        start=1,
    )
    for name in names.split()
}
#: Length of a month, a full stop and a blank.
_MONTH_CHARS: Final = 12
_MONTH: Final = "|".join(sorted(_MONTHS, key=lambda name: (-len(name), name)))
_ISO: Final = re.compile(r"(?<![\w-])([12][0-9]{3})-([01][0-9])-([0-3][0-9])(?![\w-])(?<!-00)")
_DOTTED: Final = re.compile(r"(?<![\w.])([0-3]?[0-9])\.([01]?[0-9])\.([12][0-9]{3})(?![\w.]\w)")
_DAY_FIRST: Final = re.compile(
    rf"(?<!\w)([0-3]?[0-9])(?:st|nd|rd|th|\.)?\s(?:of\s|de\s)?({_MONTH})\.?,?\s(?:de\s)?([12][0-9]{{3}})(?!\w)",
    re.I,
)
_MONTH_FIRST: Final = re.compile(
    rf"(?<!\w)({_MONTH})\.?\s([0-3]?[0-9])(?:st|nd|rd|th)?,?\s([12][0-9]{{3}})(?!\w)", re.I
)


def find_entities(
    text: str, found: Sequence[Token], breaking: Container[str], *, case_counts: bool
) -> Iterator[tuple[str, str, int]]:
    """Kind, name and position of the entities of a sentence.

    `case_counts` is False for titles, whose capitals say nothing.
    """
    digits = False
    for token in found:
        if token.kind == "word":
            if _ACRONYM.match(token.text) and case_counts:
                yield ACRONYM, token.text, token.start
            elif is_identifier(token.text):
                yield IDENTIFIER, token.text, token.start
        elif token.kind == "number":
            digits = True
        elif token.kind == "quoted":
            yield from _code(token)
        elif token.kind == "url":
            yield URL, token.text.rstrip(_TRAILING), token.start
        elif token.kind == "email":
            yield EMAIL, token.text.rstrip(_TRAILING).lower(), token.start
        elif token.kind == "path" and token.text.count("/") > 1:
            yield CODE, token.text.rstrip(_TRAILING), token.start
    if digits:
        yield from _dates(text, found[0].start, found[-1].end)
    if case_counts:
        yield from _names(text, found, breaking)


@lru_cache(maxsize=20_000)
def is_identifier(word: str) -> bool:
    """True for identifiers and file names: `job_id`, `jobId`, `contract.md`."""
    if "_" in word.strip("_") or "." in word:
        return True
    # Product names have inner capitals, too, but begin with one (`GitHub`) or end with one
    # (`macOS`).
    if not word[:1].islower() or word[-1:].isupper():
        return False
    return word.isascii() and bool(_INNER_CAPITAL.search(word))


def _code(token: Token) -> Iterator[tuple[str, str, int]]:
    inside = token.text.strip("`").strip()
    if len(inside) > _MOST_CODE_CHARS or _WORDLIKE.match(inside):
        return
    if sum(sign.isalpha() for sign in inside) < _LEAST_LETTERS:
        return
    kind = IDENTIFIER if inside.isidentifier() else CODE
    yield kind, inside, token.start + 1


def _names(
    text: str, found: Sequence[Token], breaking: Container[str]
) -> Iterator[tuple[str, str, int]]:
    """Runs of capitalised words; the first word of a sentence counts only if another follows."""
    run: list[Token] = []
    for index, token in enumerate(found):
        apart = bool(run) and text[run[-1].end : token.start].strip(" \n")
        if apart:
            yield from _name(run)
            run = []
        capital = (
            token.kind == "word" and token.text[:1].isupper() and not is_identifier(token.text)
        )
        if (capital and len(token.text) > 1 and (index or _starts_name(text, found, breaking))) or (
            run and token.kind == "word" and token.text in _BETWEEN
        ):
            run.append(token)
        else:
            yield from _name(run)
            run = []
    yield from _name(run)


def _starts_name(text: str, found: Sequence[Token], breaking: Container[str]) -> bool:
    """True if the first word of a sentence is directly followed by another capitalised one."""
    if len(found) < 2 or found[0].text.lower() in breaking:
        return False
    return found[1].text[:1].isupper() and not text[found[0].end : found[1].start].strip(" \n")


def _name(run: list[Token]) -> Iterator[tuple[str, str, int]]:
    """A name of several words; a run that is too long is split at its small words."""
    while run and run[-1].text in _BETWEEN:
        run.pop()
    if len(run) > _MOST_NAME_WORDS:
        parts: list[list[Token]] = [[]]
        for token in run:
            if token.text in _BETWEEN:
                parts.append([])
            else:
                parts[-1].append(token)
        for part in parts:
            if len(part) <= _MOST_NAME_WORDS:
                yield from _name(part)
        return
    capitals = sum(token.text[:1].isupper() for token in run)
    if capitals >= 2:
        words = [token.text for token in run]
        if not all(_ACRONYM.match(word) for word in words):
            words[-1] = words[-1].removesuffix("'s").removesuffix("’s")
            yield NAME, " ".join(words), run[0].start


def _dates(text: str, start: int, end: int) -> Iterator[tuple[str, str, int]]:
    """Calendar dates in ISO format."""
    for match in _ISO.finditer(text, start, end):
        yield from _day(match[1], match[2], match[3], match.start())
    for match in _DOTTED.finditer(text, start, end):
        yield from _day(match[3], match[2], match[1], match.start())
    for match in _DAY_FIRST.finditer(text, start, end):
        yield from _day(match[3], str(_MONTHS[match[2].lower()]), match[1], match.start())
    # `Feb. 3, 2026` is split like two sentences.
    for match in _MONTH_FIRST.finditer(text, max(0, start - _MONTH_CHARS), end):
        if match.end() <= start:
            continue
        yield from _day(match[3], str(_MONTHS[match[1].lower()]), match[2], match.start())


def _day(year: str, month: str, day: str, offset: int) -> Iterator[tuple[str, str, int]]:
    try:
        yield DATE, datetime.date(int(year), int(month), int(day)).isoformat(), offset
    except ValueError:  # not a valid date
        return

"""Finds acronyms explained in a text: `Dead Letter Queue (DLQ)`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from sluice.worker.features.workflows.memory_first.text.stopwords import word_set

#: Length of an acronym, and words of its expansion.
_LEAST, _MOST = 2, 10
_MOST_WORDS: Final = 10
_MOST_LONG_CHARS: Final = 120
#: Content of brackets: no other brackets, no line break, bounded length.
_BRACKETS: Final = re.compile(r"(?P<before>[^\s(\[]?)[ \t]?\((?P<inside>[^()\n]{2,160})\)")
_SHORT: Final = re.compile(r"[A-Z0-9][A-Za-z0-9&/.-]{1,9}\Z")
_SHORT_BEFORE: Final = re.compile(r"(?<![\w.-])[A-Z0-9][A-Za-z0-9&/-]{1,9}\Z")
_WORD: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_HYPHEN: Final = re.compile(r"[-'’]")
#: Marks before which an expansion cannot start.
_STOPS: Final = re.compile(r"[.;:!?,|\n\"“”«»]")
#: Small words may be skipped when letters are matched, and do not start an expansion.
_SMALL: Final = word_set(
    "a an and as at by for from in into of on or over per the to via with und der die das des "
    "für von zur zum de la le les du et pour el los y e di della"
)


class AcronymPair(NamedTuple):
    """An acronym, its expansion, its position, and whether each letter begins a word."""

    short: str
    long: str
    offset: int
    exact: bool


def find_acronym_pairs(text: str, start: int, end: int) -> Iterator[AcronymPair]:
    """The acronyms that `text[start:end]` explains."""
    at = text.find("(", start, end)
    if at < 0:
        return
    for match in _BRACKETS.finditer(text, start, end):
        inside = match["inside"].strip()
        opens = match.start("inside") - 1
        if _is_short(inside):
            found = _before(text, start, opens, inside)
        else:
            found = _inside(text, start, opens, match.start("inside"), inside)
        if found is not None:
            yield found


def _before(text: str, start: int, opens: int, short: str) -> AcronymPair | None:
    """`Dead Letter Queue (DLQ)`: the expansion precedes the brackets."""
    floor = max(start, opens - _MOST_LONG_CHARS)
    stop = floor
    for mark in _STOPS.finditer(text, floor, opens):
        stop = mark.end()
    words = list(_WORD.finditer(text, stop, opens))[-_MOST_WORDS:]
    if not words or text[words[-1].end() : opens].strip(" \t*_"):
        return None
    matched = _fit(short, [word[0] for word in words])
    if matched is None:
        return None
    first, exact = matched
    begins = words[first].start()
    return _pair(short, text[begins : words[-1].end()], begins, exact)


def _inside(text: str, start: int, opens: int, at: int, inside: str) -> AcronymPair | None:
    """`DLQ (dead letter queue)`: the expansion is in brackets."""
    before = text[max(start, opens - 14) : opens].rstrip(" \t*_")
    match = _SHORT_BEFORE.search(before)
    if match is None or not _is_short(match[0]):
        return None
    words = list(_WORD.finditer(inside))
    if not 2 <= len(words) <= _MOST_WORDS:
        return None
    matched = _fit(match[0], [word[0] for word in words])
    if matched is None or matched[0] != 0 or _STOPS.search(inside):
        return None
    return _pair(match[0], inside[: words[-1].end()], at, matched[1])


def _pair(short: str, long: str, offset: int, exact: bool) -> AcronymPair | None:
    long = " ".join(long.split())
    if long.casefold() == short.casefold() or short in _WORD.findall(long):
        return None
    return AcronymPair(short.rstrip("."), long, offset, exact)


def _is_short(text: str) -> bool:
    """True if it looks like an acronym: mostly capitals."""
    if not _SHORT.match(text):
        return False
    letters = [sign for sign in text if sign.isalpha()]
    capitals = sum(sign.isupper() for sign in letters)
    return _LEAST <= len(text) <= _MOST and capitals >= 2 and 2 * capitals >= len(letters)


def _fit(short: str, words: list[str]) -> tuple[int, bool] | None:
    """Index of the first word of the expansion, and whether every letter begins a word.

    Plurals (`DLQs`) are matched as their singular.
    """
    signs = [sign.lower() for sign in short if sign.isalnum()]
    if signs and signs[-1] == "s" and short.endswith("s") and len(signs) > _LEAST:
        signs = signs[:-1]
    parts = [(index, part) for index, word in enumerate(words) for part in _HYPHEN.split(word)]
    exact = _match_initials(signs, parts)
    found = exact if exact is not None else _match_letters(signs, [part for _, part in parts])
    # A single word, as in `the Queue (Q)`, is not an expansion.
    if found is None or len(parts) - found < 2:
        return None
    first = parts[found][0]
    if found and parts[found - 1][0] == first:  # it would start in the middle of a word
        return None
    return first, exact is not None


def _match_initials(signs: list[str], parts: list[tuple[int, str]]) -> int | None:
    """Index from which on words begin with these letters, one each; small words may be skipped."""
    at = len(parts) - 1
    for sign in reversed(signs):
        while at >= 0 and not _begins(parts[at][1].lower(), sign):
            if parts[at][1].lower() not in _SMALL:
                return None
            at -= 1
        if at < 0:
            return None
        at -= 1
    return at + 1


def _begins(word: str, sign: str) -> bool:
    return word.startswith(sign) or (sign == "x" and word.startswith(("cross", "ex", "trans")))


def _match_letters(signs: list[str], words: list[str]) -> int | None:
    """Like `_match_initials`, for letters within words, as in `Hypertext Transfer Protocol (HTTP)`.

    Matches from right to left. The first letter must begin a word, and every word except small ones
    must contribute a letter.
    """
    at, index = len(words) - 1, len(signs) - 1
    used = False
    position = len(words[at])
    while index >= 0 and at >= 0:
        word = words[at].lower()
        if position and word.startswith(signs[index]):
            found = 0
        else:
            found = word.rfind(signs[index], 0, position) if index else -1
        if found >= 0:
            used, position, index = True, found, index - 1
        elif used or word in _SMALL:
            at, used = at - 1, False
            position = len(words[at]) if at >= 0 else 0
        else:
            return None
    if index >= 0 or len(words) - at > len(signs) + 2 or sum(map(len, words[at:])) < 3 * len(signs):
        return None
    return at

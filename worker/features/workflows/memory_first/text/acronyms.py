"""Short forms and what they stand for, where a text says so: `Dead Letter Queue (DLQ)`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from worker.features.workflows.memory_first.text.stopwords import word_set

#: Signs of a short form, and words of what it stands for.
_LEAST, _MOST = 2, 10
_MOST_WORDS: Final = 10
_MOST_LONG_CHARS: Final = 120
#: What may stand in brackets: no other bracket, no new line, not for long.
_BRACKETS: Final = re.compile(r"(?P<before>[^\s(\[]?)[ \t]?\((?P<inside>[^()\n]{2,160})\)")
_SHORT: Final = re.compile(r"[A-Z0-9][A-Za-z0-9&/.-]{1,9}\Z")
_SHORT_BEFORE: Final = re.compile(r"(?<![\w.-])[A-Z0-9][A-Za-z0-9&/-]{1,9}\Z")
_WORD: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_HYPHEN: Final = re.compile(r"[-'’]")
#: A longer form ends at these, seen from the brackets.
_STOPS: Final = re.compile(r"[.;:!?,|\n\"“”«»]")
#: Small words may be skipped when letters are looked for, and do not begin a longer form.
_SMALL: Final = word_set(
    "a an and as at by for from in into of on or over per the to via with und der die das des "
    "für von zur zum de la le les du et pour el los y e di della"
)


class AcronymPair(NamedTuple):
    """A short form and its longer one, where it stands, and whether each letter begins a word."""

    short: str
    long: str
    offset: int
    exact: bool


def find_acronym_pairs(text: str, start: int, end: int) -> Iterator[AcronymPair]:
    """The short forms that `text[start:end]` explains."""
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
    """`Dead Letter Queue (DLQ)`: the longer form stands before the brackets."""
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
    """`DLQ (dead letter queue)`: the longer form stands between them."""
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
    """Whether something looks like a short form: mostly capitals, and no word."""
    if not _SHORT.match(text):
        return False
    letters = [sign for sign in text if sign.isalpha()]
    capitals = sum(sign.isupper() for sign in letters)
    return _LEAST <= len(text) <= _MOST and capitals >= 2 and 2 * capitals >= len(letters)


def _fit(short: str, words: list[str]) -> tuple[int, bool] | None:
    """The word with which the longer form begins, and whether every letter begins a word.

    Plural forms (`DLQs`) fit as their singular does.
    """
    signs = [sign.lower() for sign in short if sign.isalnum()]
    if signs and signs[-1] == "s" and short.endswith("s") and len(signs) > _LEAST:
        signs = signs[:-1]
    parts = [(index, part) for index, word in enumerate(words) for part in _HYPHEN.split(word)]
    exact = _match_initials(signs, parts)
    found = exact if exact is not None else _match_letters(signs, [part for _, part in parts])
    # Something like `the Queue (Q)` explains nothing.
    if found is None or len(parts) - found < 2:
        return None
    first = parts[found][0]
    if found and parts[found - 1][0] == first:  # it would begin in the middle of a word
        return None
    return first, exact is not None


def _match_initials(signs: list[str], parts: list[tuple[int, str]]) -> int | None:
    """Where the last words begin with these letters, one each; small words may be left out."""
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
    """The same for letters inside words, as in `Hypertext Transfer Protocol (HTTP)`.

    From the end on, each letter is looked for further left; the first one begins a word, and
    every word but small ones has a part in it.
    """
    at, index = len(words) - 1, len(signs) - 1
    used = False
    place = len(words[at])
    while index >= 0 and at >= 0:
        word = words[at].lower()
        if place and word.startswith(signs[index]):
            found = 0
        else:
            found = word.rfind(signs[index], 0, place) if index else -1
        if found >= 0:
            used, place, index = True, found, index - 1
        elif used or word in _SMALL:
            at, used = at - 1, False
            place = len(words[at]) if at >= 0 else 0
        else:
            return None
    if index >= 0 or len(words) - at > len(signs) + 2 or sum(map(len, words[at:])) < 3 * len(signs):
        return None
    return at

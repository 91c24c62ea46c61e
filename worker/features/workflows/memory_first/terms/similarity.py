"""Decides whether two names are the same: inflections, spelling variants and typos."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from rapidfuzz import fuzz
from rapidfuzz.distance import OSA

from sluice.worker.features.rag.text.languages import COMMON_WORDS, ENGLISH, stem
from sluice.worker.features.workflows.memory_first.text.stopwords import word_set

#: Minimum similarity, 0 to 100, of two spellings of one word.
MIN_RATIO: Final = 90.0
#: Minimum length of words to be compared, and to be considered for typos.
MIN_WORD_CHARS: Final = 5
MIN_TYPO_CHARS: Final = 8
#: Minimum ratio of frequencies between a word and its typo, and most occurrences of a typo.
_TIMES_RARER: Final = 4
_MOST_TYPOS: Final = 3

#: Prefixes that make a different word.
_PREFIXES: Final = word_set(
    "anti ante after back be bi by co contra counter cross de dis down em en ex extra fore "
    "hyper hypo il im in inter intra ir iso macro mal mega meta micro mid mini mis mono multi "
    "nano neo non off on out over para peri poly post pre pro pseudo quasi re retro self semi "
    "sub super sur tele trans tri ultra un under uni up with within miss ent ver auf ab an "
    "aus ein zer vor nach dés mé des"
)
#: Pairs of prefixes with opposite meanings.
_OPPOSITES: Final = (
    ("in", "ex"), ("im", "ex"), ("in", "de"), ("en", "de"), ("up", "down"), ("pre", "post"),
    ("over", "under"), ("inter", "intra"), ("hyper", "hypo"), ("macro", "micro"), ("max", "min"),
    ("maxi", "mini"), ("in", "out"), ("on", "off"), ("up", "down"), ("sub", "super"),
    ("pro", "anti"), ("pro", "con"), ("ante", "anti"), ("intro", "extro"), ("endo", "exo"),
    ("homo", "hetero"), ("mono", "poly"), ("producer", "consumer"), ("ein", "aus"), ("auf", "ab"),
    ("inbound", "outbound"), ("upper", "lower"), ("first", "last"), ("as", "des"), ("a", "de"),
    ("in", "un"), ("mis", "dis"),
)  # fmt: skip
#: Pairs of endings that make different words.
_ENDINGS: Final = (
    ("er", "ee"), ("or", "ee"), ("ful", "less"), ("er", "ing"), ("or", "ion"), ("ic", "ics"),
    ("y", "ist"), ("ism", "ist"), ("al", "ity"), ("ent", "ence"), ("ant", "ance"), ("er", "est"),
    ("able", "ing"), ("ed", "ing"), ("er", "ed"), ("ion", "ive"), ("ly", "al"), ("ive", "ively"),
    ("e", "ed"), ("", "ed"), ("", "ing"), ("e", "ing"), ("", "d"), ("e", "er"), ("", "er"),
    ("", "r"),
    ("", "ly"), ("", "al"), ("", "ally"), ("y", "ily"), ("ed", "es"), ("ing", "s"), ("ing", "es"),
    ("ed", "s"), ("", "able"), ("", "ion"), ("e", "ion"), ("", "ment"), ("", "ness"), ("", "y"),
)  # fmt: skip
_NEGATIONS: Final = word_set("no not non without never nor kein keine nicht ohne sans pas sin")
#: Letter sequences that differ between two spellings of one word, in either direction.
_SPELLINGS: Final = (
    ("our", "or"), ("ise", "ize"), ("isation", "ization"), ("yse", "yze"), ("re", "er"),
    ("ogue", "og"), ("ae", "e"), ("oe", "e"), ("ence", "ense"), ("ll", "l"), ("mme", "m"),
    ("ß", "ss"), ("ph", "f"), ("ä", "ae"), ("ö", "oe"), ("ü", "ue"), ("dge", "dg"),
)  # fmt: skip
#: Reason for names that differ in grammatical number only.
SINGULAR_PLURAL: Final = "singular and plural"
_DIGITS: Final = re.compile(r"\d+")
_SEPARATORS: Final = re.compile(r"[\s\-‐‑–_'’.]+")


class Similarity(NamedTuple):
    """Why two names are the same, and the confidence."""

    why: str
    confidence: float


def without_separators(name: str) -> str:
    """Drop blanks and hyphens: `dead-letter queue` and `deadletter queue` become equal."""
    return _SEPARATORS.sub("", name)


def is_plural(one: str, other: str, language: str = ENGLISH) -> bool:
    """True if two words are singular and plural of one word."""
    short, long = sorted((one, other), key=len)
    if len(short) < 3 or not short[-1:].isalpha() or _DIGITS.findall(one) != _DIGITS.findall(other):
        return False
    if language != ENGLISH:
        plain = len(long) - len(short) <= 2 and long.startswith(short[:-1])
        return plain and language in COMMON_WORDS and stem(one, language) == stem(other, language)
    if long == short + "s":
        return not short.endswith("s") and long not in _NO_PLURALS
    if long == short + "es":
        return short.endswith(("s", "x", "z", "ch", "sh", "o"))
    return short.endswith("y") and long == short[:-1] + "ies" and short[-2:-1] not in "aeiou"


#: Words ending in s that are not plurals.
_NO_PLURALS: Final = word_set(
    "news does its this has was gas bus pass less process access class kubernetes redis "
    "analysis basis status axis chaos bias canvas corpus focus alias series species means "
    "physics mathematics economics statistics dynamics logistics ethics "
    "politics semantics graphics as is us sales goods arms customs"
)


def differ_in_number(one: str, other: str, language: str) -> bool:
    """True if two phrases differ only in the number of one word."""
    if one == other:
        return True
    left, right = one.split(), other.split()
    if len(left) != len(right):
        return False
    differing = [(a, b) for a, b in zip(left, right) if a != b]
    return len(differing) == 1 and is_plural(*differing[0], language)


def compare_names(one: str, other: str, language: str, freqs: tuple[int, int]) -> Similarity | None:
    """Compare two lower-case phrases; None if they are different terms."""
    if one == other or not _may_be_same(one, other):
        return None
    if (
        without_separators(one) == without_separators(other)
        and len(without_separators(one)) >= MIN_WORD_CHARS
    ):
        return Similarity("written apart, with a hyphen or as one word", 0.93)
    if differ_in_number(one, other, language):
        return Similarity(SINGULAR_PLURAL, 0.88)
    left, right = _SEPARATORS.sub(" ", one).split(), _SEPARATORS.sub(" ", other).split()
    if len(left) != len(right):
        return None
    differing = [(a, b) for a, b in zip(left, right) if a != b]
    if len(differing) != 1:
        return None
    return _compare_words(*differing[0], language, freqs, len(left) > 1)


def _may_be_same(one: str, other: str) -> bool:
    """False for names that differ in numbers, negations or opposites, even if they are similar."""
    if _DIGITS.findall(one) != _DIGITS.findall(other):
        return False
    left, right = _SEPARATORS.sub(" ", one).split(), _SEPARATORS.sub(" ", other).split()
    if (_NEGATIONS & set(left)) != (_NEGATIONS & set(right)):
        return False
    whole = without_separators(one), without_separators(other)
    if whole[0] != whole[1] and _are_opposite(*whole):
        return False
    if len(left) == len(right):
        return not any(_are_opposite(a, b) for a, b in zip(left, right) if a != b)
    return True


def _compare_words(
    one: str, other: str, language: str, freqs: tuple[int, int], in_phrase: bool
) -> Similarity | None:
    """Compare the one word in which two phrases differ."""
    if min(len(one), len(other)) < MIN_WORD_CHARS or one[0] != other[0]:
        return None
    if is_plural(one, other, language):
        return Similarity(SINGULAR_PLURAL, 0.88)
    if _is_respelling(one, other):
        return Similarity("two spellings of one word", 0.85)
    ratio = fuzz.ratio(one, other)
    if sorted(one) == sorted(other) and OSA.distance(one, other) == 1:
        ratio = max(ratio, MIN_RATIO)  # swapped letters are one typo, not two
    if ratio < MIN_RATIO or _have_other_endings(one, other):
        return None
    if language in COMMON_WORDS and stem(one, language) == stem(other, language):
        return Similarity("same stem", 0.75) if not in_phrase else Similarity("same stem", 0.8)
    return _typo(one, other, freqs, ratio)


def _typo(one: str, other: str, freqs: tuple[int, int], ratio: float) -> Similarity | None:
    """Whether the rarer of two words is a typo of the other."""
    rare, usual = sorted(freqs)
    if rare > _MOST_TYPOS or usual < _TIMES_RARER * rare:
        return None
    if OSA.distance(one, other) != 1:
        return None
    swapped = sorted(one) == sorted(other)
    doubled = _collapse_doubles(one) == _collapse_doubles(other)
    if not (swapped or doubled) and min(len(one), len(other)) < MIN_TYPO_CHARS:
        return None
    return Similarity("likely a typo", 0.72 if swapped or doubled else ratio / 150)


def _are_opposite(one: str, other: str) -> bool:
    """True if prefixes make two different words: `secure`, `insecure`; `import`, `export`."""
    short, long = sorted((one, other), key=len)
    if long.endswith(short) and long[: len(long) - len(short)] in _PREFIXES:
        return True
    for left, right in _OPPOSITES:
        for first, second in ((left, right), (right, left)):
            if one.startswith(first) and other.startswith(second):
                ends = one[len(first) :], other[len(second) :]
                if ends[0] == ends[1] or (len(ends[0]) > 2 and fuzz.ratio(*ends) >= MIN_RATIO):
                    return True
    return False


def _have_other_endings(one: str, other: str) -> bool:
    for left, right in _ENDINGS:
        for first, second in ((left, right), (right, left)):
            ends = one.endswith(first) and other.endswith(second)
            if ends and one[: len(one) - len(first)] == other[: len(other) - len(second)]:
                return True
    return False


def _is_respelling(one: str, other: str) -> bool:
    for left, right in _SPELLINGS:
        for first, second in ((left, right), (right, left)):
            at = one.find(first)
            while at >= 0:
                if one[:at] + second + one[at + len(first) :] == other:
                    return True
                at = one.find(first, at + 1)
    return False


def _collapse_doubles(word: str) -> str:
    return re.sub(r"(.)\1", r"\1", word)

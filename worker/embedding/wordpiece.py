"""Text to the token ids of an uncased BERT vocabulary, as the model was trained to read it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from worker.embedding.types import DamagedModel
from worker.embedding.unicode8 import IGNORED, MARKS, PUNCTUATION

UNKNOWN: Final = "[UNK]"
BEGIN: Final = "[CLS]"
END: Final = "[SEP]"
#: Written out in a text, they count as themselves.
SPECIAL: Final = ("[PAD]", UNKNOWN, BEGIN, END, "[MASK]")
#: Longer words are unknown without a look.
MAX_WORD_CHARS: Final = 100
#: A text is read in pieces of about this size, so that nobody waits for what is cut off.
PIECE_CHARS: Final = 2048
#: Words whose pieces are remembered.
CACHED_WORDS: Final = 20_000
#: Characters from here on are looked up each time instead of being remembered.
_COMMON: Final = 0xD800

_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")
_SPACES: Final = frozenset(
    (*range(0x2000, 0x200B), 0x09, 0x0A, 0x0D, 0x20, 0xA0, 0x1680, 0x2028, 0x2029)
) | {0x202F, 0x205F, 0x3000}
#: Halves of pairs, and what everybody may use as he likes.
_INVISIBLE: Final = (range(0xD800, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
#: Each of these is a word. The gap before 2B920 is the reference's own.
_FIRST_IDEOGRAPH: Final = 0x3400
_IDEOGRAPHS: Final = (
    range(0x4E00, 0xA000), range(0x3400, 0x4DC0), range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740), range(0x2B740, 0x2B820), range(0x2B920, 0x2CEB0),
    range(0xF900, 0xFB00), range(0x2F800, 0x2FA20),
)  # fmt: skip


class Tokens(NamedTuple):
    """A text as the model reads it; `truncated` where there was more of it."""

    ids: list[int]
    truncated: bool


class WordPiece:
    """Splits words into the longest pieces of a vocabulary."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        missing = [word for word in SPECIAL if word not in vocabulary]
        if missing:
            raise DamagedModel(f"the vocabulary lacks {', '.join(missing)}")
        self._vocabulary = vocabulary
        self._unknown = vocabulary[UNKNOWN]
        self._longest = max(map(len, vocabulary))
        self._word = lru_cache(CACHED_WORDS)(self._split)

    @classmethod
    def load(cls, folder: Path) -> WordPiece:
        """The vocabulary in a model's folder: `vocab.txt` or `tokenizer.json`."""
        return cls(read_vocabulary(folder))

    def encode(self, text: str, max_tokens: int) -> Tokens:
        """The ids of `text` between those of begin and end, `max_tokens` at most."""
        room = max_tokens - 2
        ids: list[int] = []
        for word in _words(text):
            ids += (self._vocabulary[word],) if word in SPECIAL else self._word(word)
            if len(ids) > room:
                break
        begin, end = self._vocabulary[BEGIN], self._vocabulary[END]
        return Tokens([begin, *ids[:room], end], len(ids) > room)

    def _split(self, word: str) -> tuple[int, ...]:
        if len(word) > MAX_WORD_CHARS:
            return (self._unknown,)
        ids: list[int] = []
        start, prefix = 0, ""
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                found = self._vocabulary.get(prefix + word[start:end])
                if found is not None:
                    break
            else:
                return (self._unknown,)
            ids.append(found)
            start, prefix = end, "##"
        return tuple(ids)


def read_vocabulary(folder: Path) -> dict[str, int]:
    """Token to id."""
    plain, full = folder / "vocab.txt", folder / "tokenizer.json"
    try:
        if plain.exists():
            words = plain.read_text(encoding="utf-8").split("\n")
            return {word.rstrip("\r"): number for number, word in enumerate(words) if word}
        found = orjson.loads(full.read_bytes())["model"]["vocab"]
        return {str(word): int(number) for word, number in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedModel(f"no vocabulary can be read in {folder}: {error!r}") from None


def _words(text: str) -> Iterator[str]:
    for piece in _pieces(text):
        for number, part in enumerate(_SPECIAL.split(piece)):
            if number % 2:
                yield part
            else:
                yield from _plain(part)


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        cut = text.find(" ", start + PIECE_CHARS)
        end = cut if cut >= 0 else len(text)
        yield text[start:end]
        start = end


def _plain(text: str) -> list[str]:
    """Words and punctuation marks: clean, without accents, in lower case."""
    text = text.translate(_CLEAN)
    if not text.isascii():
        text = unicodedata.normalize("NFD", text)
    return text.translate(_SEPARATE).split()


class _Clean(dict[int, "str | int | None"]):
    """For `str.translate`: drops what cannot be seen, sets ideographs apart."""

    def __missing__(self, code: int) -> str | int | None:
        found: str | int | None = code
        if code in _SPACES:
            found = " "
        elif code in IGNORED or (code >= _COMMON and any(code in part for part in _INVISIBLE)):
            found = None
        elif code >= _FIRST_IDEOGRAPH and any(code in part for part in _IDEOGRAPHS):
            found = f" {chr(code)} "
        if code < _COMMON:
            self[code] = found
        return found


class _Separate(dict[int, "str | int | None"]):
    """For `str.translate`: drops accents, lowers letters, sets punctuation apart."""

    def __missing__(self, code: int) -> str | int | None:
        found: str | int | None
        if code in MARKS:
            found = None
        elif code in PUNCTUATION:
            found = f" {chr(code)} "
        else:
            found = chr(code).lower()
        if code < _COMMON:
            self[code] = found
        return found


_CLEAN = _Clean()
_SEPARATE = _Separate()

"""The WordPiece tokenizer gives the same tokens as the `tokenizers` package."""

from __future__ import annotations

import json
import random
import re
import string
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer, Tokenizer

from sluice.worker.features.embedding import wordpiece
from sluice.worker.features.embedding.types import DamagedModel
from sluice.worker.features.embedding.wordpiece import SPECIAL_TOKENS, WordPiece, read_vocabulary
from tests.support.worker.embedding import weights

ROOT = Path(__file__).parents[4]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
NO_LIMIT = 10**9


def small_vocabulary() -> dict[str, int]:
    """Some words and pieces, most of ASCII and a few other characters."""
    words = ["the", "job", "jobs", "run", "worker", "stream", "un", "cafe", "naive", "東", "й"]
    pieces = ["##ning", "##er", "##believ", "##able", "##ed", "##ing", "##й"]
    letters = [*string.ascii_lowercase, *string.digits]
    entries = [
        *SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters),
        *string.punctuation, "—", "。", "ß", "##ß", "ø", *words, *pieces,
    ]  # fmt: skip
    return {entry: number for number, entry in enumerate(entries)}


class Pair(NamedTuple):
    """Sluice's tokenizer and the reference, with one vocabulary."""

    ours: WordPiece
    theirs: Any

    def check(self, text: str) -> None:
        assert self.ours.encode(text, NO_LIMIT).ids == self.theirs.encode(text).ids, text


@pytest.fixture(scope="module")
def small() -> Pair:
    vocabulary = small_vocabulary()
    return Pair(WordPiece(vocabulary), BertWordPieceTokenizer(vocabulary))


@pytest.fixture(scope="module")
def installed() -> Pair:
    folder = weights()
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.no_padding()
    theirs.no_truncation()
    return Pair(WordPiece.load(folder), theirs)


WITH_MODEL = pytest.param("installed", marks=pytest.mark.slow("reads the installed model"))


@pytest.fixture(scope="module", params=["small", WITH_MODEL])
def pair(request: Any) -> Pair:
    found: Pair = request.getfixturevalue(request.param)
    return found


TEXTS = [
    "", " ", "\n\t\r", "Hello, world!", "unbelievable running jobs", "don't  stop", "C++ & C#; a_b",
    "naïve café Ångström ΑΒΓ Σίσυφος ΟΔΟΣ", "İstanbul ıI ſtraße ŉ ǆ", "e\u0301te\u0301 n\u0303",
    "東京は日本の首都です。漢字かな交じり文", "한국어 조선말", "\U00020000\U0002b820\U0002b920 丽",
    "１２３ ½ ² ① ㎏ ﬁ", "١٢٣ عربى مَرْحَبًا", "हिन्दी क्षत्रिय", "ไทย ภาษา", "עברית שָׁלוֹם",
    "🙂👩\u200d👩\u200d👧 🇩🇪 ❤\ufe0f", "[CLS] [MASK] [PAD] [UNK] [sep] [ SEP] [[SEP]] x[SEP]y",
    "[SEP", "##ing ## #", "zero\u200bwidth\u00adsoft\ufeffbom", "nul\x00 bell\x07 del\x7f nel\x85x",
    "\u2028line\u2029\u00a0nbsp\u3000wide", "\ue000private\U000f0000", "\ufffd\ufffe\uffff",
    "\u0378\U000e0080unassigned", "\u0301\u0302 lone marks", "x" * 100, "x" * 101, "é" * 101,
    "e\u0301" * 100, "a" * 5000, " a" * 5000, "\u3000" * 5000 + "end", "。" * 3000,
    "jobs" + "\u0301" * 3000 + " run", ("word " * 1000 + "[SEP]") * 3,
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[:12]))
def test_difficult_texts(pair: Pair, text: str) -> None:
    pair.check(text)


@pytest.mark.slow("encodes every character in three positions")
def test_every_character(pair: Pair) -> None:
    check_characters(pair, characters())


def texts() -> st.SearchStrategy[str]:
    characters = st.characters(exclude_categories=["Cs"])
    words = st.sampled_from([*small_vocabulary(), "ing", "Running", "UNBELIEVABLE", "\u0301", " "])
    return st.one_of(
        st.text(characters, max_size=200),
        st.lists(st.one_of(words, st.text(characters, max_size=3)), max_size=60).map("".join),
    )


@settings(max_examples=150, deadline=None)
@given(text=texts())
def test_any_text(pair: Pair, text: str) -> None:
    pair.check(text)


def test_no_more_than_the_model_reads(small: Pair) -> None:
    begin, end = 2, 3
    short = small.ours.encode("a b c", 5)
    assert (len(short.ids), short.truncated) == (5, False)
    cut = small.ours.encode("a b c d", 5)
    assert (cut.ids, cut.truncated) == (short.ids, True)
    assert (cut.ids[0], cut.ids[-1]) == (begin, end)
    small.theirs.enable_truncation(16)
    try:
        for text in TEXTS:
            assert small.ours.encode(text, 16).ids == small.theirs.encode(text).ids
    finally:
        small.theirs.no_truncation()
    # Unpaired surrogates are dropped.
    assert small.ours.encode("a\ud800b", 9).ids == small.ours.encode("ab", 9).ids


def test_text_beyond_the_limit_is_not_read(small: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    plain = wordpiece._normalized_words
    monkeypatch.setattr(
        wordpiece, "_normalized_words", lambda text: (seen.append(text), plain(text))[1]
    )
    assert small.ours.encode("a " * 1_000_000, 256).truncated
    assert sum(map(len, seen)) <= 2 * wordpiece.PIECE_CHARS


def test_both_files_hold_the_vocabulary(tmp_path: Path) -> None:
    vocabulary = small_vocabulary()
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    assert read_vocabulary(tmp_path) == vocabulary
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    assert read_vocabulary(tmp_path) == vocabulary
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(vocabulary).encode())
    assert read_vocabulary(tmp_path) == vocabulary


def test_a_damaged_vocabulary_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DamagedModel, match="vocabulary"):
        WordPiece.load(tmp_path)
    for content in ("", "[]", "{", '{"model": {"vocab": 3}}', '{"model": null}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(DamagedModel, match="vocabulary"):
            WordPiece.load(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(DamagedModel, match=re.escape(", ".join(SPECIAL_TOKENS))):
        WordPiece.load(tmp_path)


def characters() -> list[int]:
    assigned = [*range(0xD800), *range(0xE000, 0x32000), *range(0xE0000, 0xE0200)]
    others = random.Random(5).sample(range(0x32000, 0x110000), 5000)
    edges = [edge + by for edge in (0xF0000, 0x100000, 0x10FFFE) for by in (-2, -1, 0, 1)]
    return [*assigned, *others, *edges]


def check_characters(pair: Pair, codes: list[int]) -> None:
    """Alone, within a word, and after an accent."""
    for first in range(0, len(codes), 512):
        block = map(chr, codes[first : first + 512])
        pair.check(" ".join(f"{char} a{char}b e\u0301{char}" for char in block))


def test_many_characters(pair: Pair) -> None:
    check_characters(pair, [*range(0x600), *characters()[0x600::40]])


def test_the_documentation_and_its_words_in_any_order(pair: Pair) -> None:
    for path in DOCUMENTS:
        pair.check(path.read_text())
    dice = random.Random(7)
    pages = ("contract.md", "docs/http.md", "docs/workflow-contract.md", "docs/image-contract.md")
    words = re.findall(r"\S+|\s+", "\n".join((ROOT / page).read_text() for page in pages))
    for _ in range(200):
        pair.check("".join(dice.choices(words, k=40)))

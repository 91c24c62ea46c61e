"""The installed weights, and a small vocabulary for tests without them."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from common.settings.models_dir import EMBED_DIRECTORY, models_dir
from tests.support.servers import missing
from worker.features.embedding.factory import WEIGHTS_FILE
from worker.features.embedding.wordpiece import CLASSIFY, SEPARATOR, SPECIAL_TOKENS, UNKNOWN


def weights() -> Path:
    """The folder of the installed model; skips the test if it is missing (fails in CI)."""
    folder = models_dir() / EMBED_DIRECTORY
    if not (folder / WEIGHTS_FILE).exists():
        missing("no embedding model is installed; run `sluice model install`")
    return folder


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


def reference(vocabulary: dict[str, int]) -> Any:
    """The reference tokenizer with the same vocabulary."""
    tokenizer = Tokenizer(
        WordPiece(vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=100)  # type: ignore[call-arg]
    )
    tokenizer.normalizer = BertNormalizer(  # type: ignore[assignment]
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()  # type: ignore[assignment]
    tokenizer.post_processor = TemplateProcessing(  # type: ignore[assignment]
        single=f"{CLASSIFY} $A {SEPARATOR}",
        special_tokens=[(CLASSIFY, vocabulary[CLASSIFY]), (SEPARATOR, vocabulary[SEPARATOR])],
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer

"""The `text_stats` tool: counts characters, words and sentences."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from pydantic import Field

from sluice.worker.features.tools.builtin.arguments import Arguments
from sluice.worker.features.tools.tool import Call

MOST_CHARS = 100_000
_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_SENTENCE_END = re.compile(r"[.!?…。！？]+(?=\s|$)")
#: Average reading speed of an adult.
_WORDS_A_MINUTE = 200
_MOST_FREQUENT = 5


class TextStatsArguments(Arguments):
    """Arguments of `text_stats`."""

    text: str = Field(max_length=MOST_CHARS)


def text_stats(call: Call, arguments: TextStatsArguments) -> dict[str, Any]:
    """Counts the characters, words, sentences, lines and paragraphs of a text."""
    text = arguments.text
    words = _WORD.findall(text)
    ends = len(_SENTENCE_END.findall(text))
    rest = _SENTENCE_END.split(text)[-1].strip() if ends else text.strip()
    frequent = Counter(word.lower() for word in words).most_common(_MOST_FREQUENT)
    return {
        "characters": len(text),
        "characters_without_spaces": sum(not character.isspace() for character in text),
        "bytes": len(text.encode(errors="replace")),
        "words": len(words),
        "unique_words": len({word.lower() for word in words}),
        "sentences": ends + bool(rest),
        "lines": len(text.splitlines()),
        "paragraphs": sum(bool(part.strip()) for part in re.split(r"\n\s*\n", text)),
        "reading_minutes": round(len(words) / _WORDS_A_MINUTE, 1),
        "most_frequent": [{"word": word[:100], "times": times} for word, times in frequent],
    }

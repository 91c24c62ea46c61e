"""Finds the JSON in what a model said: alone, in a fence, or between other words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from common import codec
from worker.model.fences import blocks

#: As deep as the requests that the gateway takes.
MOST_LEVELS = 64
#: How many places in a text are tried.
MOST_TRIES = 64
_THINKING, _THOUGHT = "<think>", "</think>"


class NoJson(ValueError):
    """There is none; the text says why."""


def find_json(text: str) -> Any:
    """The value that `text` is or holds; raises NoJson."""
    text = without_thoughts(text).strip()
    try:
        return _parsed(text)
    except ValueError as error:
        reason = str(error)
    for candidate in sorted(_candidates(text), key=len, reverse=True):
        try:
            return _parsed(candidate)
        except ValueError:
            continue
    raise NoJson(f"it is no JSON: {reason}" if text else "it is empty")


def without_thoughts(text: str) -> str:
    """`text` without what a model thought aloud before it, where its server left that in."""
    if text.lstrip().startswith(_THINKING):
        return text.partition(_THOUGHT)[2]
    return text


def _parsed(text: str) -> Any:
    value = codec.loads(text.encode(errors="replace"))
    if levels(value) > MOST_LEVELS:
        raise ValueError(f"nested deeper than {MOST_LEVELS} levels")
    return value


def _candidates(text: str) -> Iterator[str]:
    for block in blocks(text):
        if block.language in ("", "json", "json5", "jsonc"):
            yield block.text
    decoder = json.JSONDecoder()
    tries = start = 0
    while tries < MOST_TRIES:
        starts = [found for found in (text.find("{", start), text.find("[", start)) if found >= 0]
        if not starts:
            return
        start, tries = min(starts), tries + 1
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
            continue
        yield text[start:end]
        start = end


def levels(value: Any) -> int:
    """How deep lists and objects are nested in `value`."""
    deepest, rest = 0, [(value, 1)]
    while rest:
        item, level = rest.pop()
        if isinstance(item, (dict, list)):
            deepest = max(deepest, level)
            below = item.values() if isinstance(item, dict) else item
            rest += [(each, level + 1) for each in below]
    return deepest

"""plural: counts in messages agree with their nouns."""

from __future__ import annotations

import pytest

from sluice.common.errors import QueueFull
from sluice.common.text import plural


@pytest.mark.parametrize(("count", "words"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs")])
def test_only_one_is_singular(count: int, words: str) -> None:
    assert plural(count, "job") == words


def test_an_irregular_plural() -> None:
    assert plural(1, "entry is", "entries are") == "1 entry is"
    assert plural(3, "entry is", "entries are") == "3 entries are"


def test_errors_use_it() -> None:
    assert str(QueueFull(1)) == "1 job is waiting or running"
    assert str(QueueFull(2)) == "2 jobs are waiting or running"

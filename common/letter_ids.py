"""The name of a dead letter: its id in Redis, and behind a dot the partition that has it.

Ids are unique only within a partition. With a single one there is no dot: the name is the id.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from common import codec

_NUMBER: Final = re.compile(r"\A[0-9]{1,3}\Z")


class LetterName(NamedTuple):
    """When a letter was written, and where: names sort by time."""

    ms: int
    sequence: int
    partition: int

    @property
    def id(self) -> str:
        """As Redis writes it, within the partition."""
        return f"{self.ms}-{self.sequence}"

    def text(self, partitions: int) -> str:
        """As clients see it, where there are so many partitions."""
        return self.id if partitions == 1 else f"{self.id}.{self.partition}"


def parse(text: str, partitions: int) -> LetterName | None:
    """What a client wrote; None for what names no letter, where there are so many partitions."""
    raw, number = text, "0"
    if partitions > 1:
        raw, _, number = text.partition(".")
    position = codec.stream_id(raw)
    if position is None or not _NUMBER.match(number) or int(number) >= partitions:
        return None
    return LetterName(*position, int(number))


def name_of(letter_id: str, partition: int) -> LetterName:
    """The name of a letter that a partition has; Redis wrote its id."""
    return LetterName(*(codec.stream_id(letter_id) or (0, 0)), partition)

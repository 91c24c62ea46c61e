"""How many dead letters failed alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from common.queue import DeadLetter, QueueStore
from gateway import dead_letters
from gateway.letter_pages import size_of
from gateway.likeness import Likeness, likeness_of

#: What one request looks at, and how many groups it answers with: the largest ones.
GROUPED_FROM_MAX = 5_000
GROUPED_BYTES_MAX = 64 << 20
GROUPS_MAX = 200


@dataclass(slots=True)
class Group:
    """Letters that failed alike. They are met newest first."""

    newest_id: str
    newest_job_id: str
    newest_ts: int
    oldest_id: str
    oldest_ts: int
    count: int = 1

    @classmethod
    def of(cls, letter: DeadLetter) -> Group:
        """A group of one."""
        return cls(letter.id, letter.job_id, letter.ts, letter.id, letter.ts)

    def add(self, letter: DeadLetter) -> None:
        """One more, older than all before."""
        self.count += 1
        self.oldest_id, self.oldest_ts = letter.id, letter.ts


class Grouped(NamedTuple):
    """The groups, largest first, and whether nothing was left out."""

    groups: list[tuple[Likeness, Group]]
    looked_at: int
    complete: bool


async def group_letters(queue: QueueStore) -> Grouped:
    """Group the newest letters, as far as one request may look."""
    found: dict[Likeness, Group] = {}
    looked_at = size = 0
    complete = True
    async for letter in dead_letters.walk(queue):
        if looked_at == GROUPED_FROM_MAX or size > GROUPED_BYTES_MAX:
            complete = False
            break
        looked_at += 1
        size += size_of(letter)
        likeness = likeness_of(letter)
        if likeness in found:
            found[likeness].add(letter)
        else:
            found[likeness] = Group.of(letter)
    # Sorting keeps the order of equals: the group with the newest letter comes first.
    groups = sorted(found.items(), key=lambda item: -item[1].count)
    return Grouped(groups[:GROUPS_MAX], looked_at, complete and len(groups) <= GROUPS_MAX)

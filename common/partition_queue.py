"""PartitionedQueue: the queues of all partitions as one QueueStore, for whoever sees the whole."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

from common import letter_ids
from common.codec import text
from common.errors import CorruptKey
from common.partitions import Partitions
from common.queue import DeadLetter, Due, QueueStore, Redrive
from common.scripts import Reply


class PartitionedQueue(QueueStore):
    """Asks the queue that has it, or all of them; dead letters go by `common.letter_ids`."""

    def __init__(self, partitions: Partitions, each: Sequence[QueueStore]) -> None:
        self.keys = partitions.home
        self._partitions = partitions
        self._each = tuple(each)

    @property
    def each(self) -> Sequence[QueueStore]:
        """The queue of every partition."""
        return self._each

    # -- care ------------------------------------------------------------------------------

    async def trim(self, pages: int = 32) -> int:
        """Forget acknowledged queue entries of every partition; returns how many."""
        return sum(await asyncio.gather(*(queue.trim(pages) for queue in self._each)))

    async def forget_consumers(self, group: str, idle_ms: int) -> int:
        """Remove consumers that hold nothing and were not seen for so long; returns how many."""
        gone = (queue.forget_consumers(group, idle_ms) for queue in self._each)
        return sum(await asyncio.gather(*gone))

    async def settle(self, active_key: str) -> int:
        """Forget a key's active jobs that have ended; they lie in the partition of their limits."""
        for queue in self._each:
            if active_key.startswith(queue.keys.tag):
                return await queue.settle(active_key)
        raise ValueError(f"{active_key} is in no partition")

    # -- schedule --------------------------------------------------------------------------

    async def due(self, limit: int) -> Due:
        """Which scheduled jobs of any partition are due, and when the next one is."""
        found = await asyncio.gather(*(queue.due(limit) for queue in self._each))
        job_ids = [job_id for due in found for job_id in due.job_ids]
        later = [due.next_ms for due in found if due.next_ms is not None]
        return Due(job_ids[:limit], min(later, default=None))

    async def promote(self, job_ids: Sequence[str | bytes]) -> list[Reply | CorruptKey]:
        """Put due jobs on the queues of their partitions: an outcome for each."""
        number = self._partitions.number
        shares: dict[int, list[int]] = {}
        for at, job_id in enumerate(job_ids):
            name = job_id if isinstance(job_id, str) else text(job_id)
            shares.setdefault(number(name), []).append(at)
        outcomes = await asyncio.gather(
            *(
                self._each[share].promote([job_ids[at] for at in places])
                for share, places in shares.items()
            )
        )
        order = itertools.chain.from_iterable(shares.values())
        by_place = dict(zip(order, itertools.chain.from_iterable(outcomes)))
        return [by_place[at] for at in range(len(job_ids))]

    # -- dead letters ----------------------------------------------------------------------

    async def dead_letters(self, before: str, count: int) -> list[DeadLetter]:
        """Dead letters of all partitions older than a name (`+` for all), newest first."""
        pages = await asyncio.gather(
            *(
                self.letters_of(number, letter_ids.parse(before, len(self._each)), count)
                for number in range(len(self._each))
            )
        )
        letters = itertools.chain.from_iterable(pages)
        return sorted(letters, key=self.place_of, reverse=True)[:count]

    async def letters_of(
        self, number: int, before: letter_ids.LetterName | None, count: int
    ) -> list[DeadLetter]:
        """Dead letters of one partition that are older than a name of any (None for all)."""
        start = "+"
        if before is not None:
            start = before.id
            if number < before.partition:  # of one time, the last partition's come first
                start = _just_after(before)
        found = await self._each[number].dead_letters(start, count)
        return [self._named(letter, number) for letter in found]

    def place_of(self, letter: DeadLetter) -> letter_ids.LetterName:
        """Where a letter of ours stands among all."""
        name = letter_ids.parse(letter.id, len(self._each))
        assert name is not None
        return name

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        """One dead letter, or None."""
        name = letter_ids.parse(letter_id, len(self._each))
        if name is None:
            return None
        letter = await self._each[name.partition].dead_letter(name.id)
        return None if letter is None else self._named(letter, name.partition)

    async def count_dead_letters(self) -> int:
        """How many there are in all partitions."""
        return sum(await asyncio.gather(*(queue.count_dead_letters() for queue in self._each)))

    async def redrive(self, letter: Redrive, schedule_limit: int) -> Reply:
        """Make a new job of a dead letter, once, in the letter's partition."""
        name = self._known(letter.letter_id)
        own = letter._replace(letter_id=name.id, name=letter.letter_id)
        return await self._each[name.partition].redrive(own, schedule_limit)

    def redriven_job_id(self, letter_id: str, of_job: str = "", draw: int = 0) -> str:
        """The id of the job that a dead letter becomes: the first that fits its partition."""
        name = self._known(letter_id)
        queue = self._each[name.partition]
        for drawn in itertools.count(draw):
            job_id = queue.redriven_job_id(name.id, of_job, drawn)
            if self._partitions.number(job_id) == name.partition:
                return job_id
        raise AssertionError("there is always another one")

    async def redriven_before(self, letter_id: str) -> str | None:
        """The id of the job that a dead letter, which is gone now, became not long ago."""
        name = letter_ids.parse(letter_id, len(self._each))
        return None if name is None else await self._each[name.partition].redriven_before(name.id)

    async def purge(self, names: Sequence[str]) -> int:
        """Forget dead letters for good; returns how many there were."""
        shares: dict[int, list[str]] = {}
        for letter_id in names:
            name = letter_ids.parse(letter_id, len(self._each))
            if name is not None:
                shares.setdefault(name.partition, []).append(name.id)
        gone = (self._each[number].purge(ids) for number, ids in shares.items())
        return sum(await asyncio.gather(*gone))

    def _known(self, letter_id: str) -> letter_ids.LetterName:
        name = letter_ids.parse(letter_id, len(self._each))
        if name is None:
            raise ValueError(f"{letter_id} names no dead letter")
        return name

    def _named(self, letter: DeadLetter, number: int) -> DeadLetter:
        name = letter_ids.name_of(letter.id, number)
        return replace(letter, id=name.text(len(self._each)))


def _just_after(name: letter_ids.LetterName) -> str:
    """An id that is older than none that a letter of the same time has."""
    if name.sequence < (1 << 64) - 1:
        return f"{name.ms}-{name.sequence + 1}"
    return f"{name.ms + 1}-0" if name.ms < (1 << 64) - 1 else "+"


def joined(partitions: Partitions, each: Sequence[QueueStore]) -> QueueStore:
    """The queues of all partitions as one; a single one is itself."""
    return each[0] if len(each) == 1 else PartitionedQueue(partitions, each)

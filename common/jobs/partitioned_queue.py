"""PartitionedQueue: the queues of all partitions behind one interface."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from sluice.common import codec
from sluice.common.codec import decode_text
from sluice.common.errors import CorruptKey
from sluice.common.jobs.protocols import QueueProtocol
from sluice.common.jobs.queue import DeadLetter, DeadLetterRedrive, DueJobs, QueueStore
from sluice.common.redis.partitions import Partitions
from sluice.common.redis.scripts import Reply

_NUMBER: Final = re.compile(r"\A[0-9]{1,3}\Z")


class DeadLetterId(NamedTuple):
    """Time and partition of a dead letter; ids sort by time."""

    ms: int
    sequence: int
    partition: int

    @property
    def id(self) -> str:
        """The stream id within the partition."""
        return f"{self.ms}-{self.sequence}"

    def format(self, partitions: int) -> str:
        """The id that clients use; it names the partition if there are several."""
        return self.id if partitions == 1 else f"{self.id}.{self.partition}"


def parse_dead_letter_id(text: str, partitions: int) -> DeadLetterId | None:
    """Parse an id from a client; None if it is invalid for this number of partitions."""
    raw, number = text, "0"
    if partitions > 1:
        raw, _, number = text.partition(".")
    position = codec.parse_stream_id(raw)
    if position is None or not _NUMBER.match(number) or int(number) >= partitions:
        return None
    return DeadLetterId(*position, int(number))


def dead_letter_id(letter_id: str, partition: int) -> DeadLetterId:
    """The id of a dead letter in a partition; `letter_id` is its stream id."""
    return DeadLetterId(*(codec.parse_stream_id(letter_id) or (0, 0)), partition)


class PartitionedQueue:
    """Queries the partition that has the entry, or all of them."""

    def __init__(self, partitions: Partitions, each: Sequence[QueueStore]) -> None:
        self.keys = partitions.home
        self._partitions = partitions
        self._queues = tuple(each)

    @property
    def queues(self) -> Sequence[QueueStore]:
        return self._queues

    # -- maintenance -----------------------------------------------------------------------

    async def trim(self, pages: int = 32) -> int:
        """Delete acknowledged queue entries of every partition; returns how many."""
        return sum(await asyncio.gather(*(queue.trim(pages) for queue in self._queues)))

    async def remove_idle_consumers(self, group: str, idle_ms: int) -> int:
        """Remove consumers without pending messages and idle for so long; returns how many."""
        gone = (queue.remove_idle_consumers(group, idle_ms) for queue in self._queues)
        return sum(await asyncio.gather(*gone))

    async def prune_quota(self, active_key: str) -> int:
        """Remove ended jobs from a key's quota, in the partition of its limits."""
        for queue in self._queues:
            if active_key.startswith(queue.keys.tag):
                return await queue.prune_quota(active_key)
        raise ValueError(f"{active_key} is in no partition")

    # -- schedule --------------------------------------------------------------------------

    async def due_jobs(self, limit: int) -> DueJobs:
        """The due scheduled jobs of all partitions, and when the next one is due."""
        found = await asyncio.gather(*(queue.due_jobs(limit) for queue in self._queues))
        job_ids = [job_id for due in found for job_id in due.job_ids]
        later = [due.next_ms for due in found if due.next_ms is not None]
        return DueJobs(job_ids[:limit], min(later, default=None))

    async def promote(self, job_ids: Sequence[str | bytes]) -> list[Reply | CorruptKey]:
        """Move due jobs to the queues of their partitions; returns an outcome for each."""
        number = self._partitions.number
        shares: dict[int, list[int]] = {}
        for at, job_id in enumerate(job_ids):
            name = job_id if isinstance(job_id, str) else decode_text(job_id)
            shares.setdefault(number(name), []).append(at)
        outcomes = await asyncio.gather(
            *(
                self._queues[share].promote([job_ids[at] for at in positions])
                for share, positions in shares.items()
            )
        )
        order = itertools.chain.from_iterable(shares.values())
        by_position = dict(zip(order, itertools.chain.from_iterable(outcomes)))
        return [by_position[at] for at in range(len(job_ids))]

    # -- dead letters ----------------------------------------------------------------------

    async def dead_letters(self, before: str, count: int) -> list[DeadLetter]:
        """Dead letters of all partitions older than an id (`+` for all), newest first."""
        pages = await asyncio.gather(
            *(
                self.dead_letters_in(number, parse_dead_letter_id(before, len(self._queues)), count)
                for number in range(len(self._queues))
            )
        )
        letters = itertools.chain.from_iterable(pages)
        return sorted(letters, key=self.parse_id, reverse=True)[:count]

    async def dead_letters_in(
        self, number: int, before: DeadLetterId | None, count: int
    ) -> list[DeadLetter]:
        """Dead letters of one partition older than an id of any partition (None for all)."""
        start = "+"
        if before is not None:
            start = before.id
            if number < before.partition:  # at the same time, higher partitions come first
                start = _id_after(before)
        found = await self._queues[number].dead_letters(start, count)
        return [self._with_public_id(letter, number) for letter in found]

    def parse_id(self, letter: DeadLetter) -> DeadLetterId:
        """The parsed id of a dead letter of this queue."""
        name = parse_dead_letter_id(letter.id, len(self._queues))
        assert name is not None
        return name

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        name = parse_dead_letter_id(letter_id, len(self._queues))
        if name is None:
            return None
        letter = await self._queues[name.partition].dead_letter(name.id)
        return None if letter is None else self._with_public_id(letter, name.partition)

    async def count_dead_letters(self) -> int:
        return sum(await asyncio.gather(*(queue.count_dead_letters() for queue in self._queues)))

    async def redrive(self, letter: DeadLetterRedrive, schedule_limit: int) -> Reply:
        """Create a new job from a dead letter, once, in the partition of the dead letter."""
        name = self._known(letter.letter_id)
        own = letter._replace(letter_id=name.id, name=letter.letter_id)
        return await self._queues[name.partition].redrive(own, schedule_limit)

    def redriven_job_id(self, letter_id: str, of_job: str = "", draw: int = 0) -> str:
        """The id of the job created from a dead letter: the first that belongs to its partition."""
        name = self._known(letter_id)
        queue = self._queues[name.partition]
        for drawn in itertools.count(draw):
            job_id = queue.redriven_job_id(name.id, of_job, drawn)
            if self._partitions.number(job_id) == name.partition:
                return job_id
        raise AssertionError("there is always another one")

    async def find_redriven_job(self, letter_id: str) -> str | None:
        """The id of the job recently created from a dead letter that no longer exists."""
        name = parse_dead_letter_id(letter_id, len(self._queues))
        return (
            None if name is None else await self._queues[name.partition].find_redriven_job(name.id)
        )

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Delete dead letters; returns how many there were."""
        shares: dict[int, list[str]] = {}
        for letter_id in letter_ids:
            name = parse_dead_letter_id(letter_id, len(self._queues))
            if name is not None:
                shares.setdefault(name.partition, []).append(name.id)
        gone = (self._queues[number].purge(ids) for number, ids in shares.items())
        return sum(await asyncio.gather(*gone))

    def _known(self, letter_id: str) -> DeadLetterId:
        name = parse_dead_letter_id(letter_id, len(self._queues))
        if name is None:
            raise ValueError(f"{letter_id} names no dead letter")
        return name

    def _with_public_id(self, letter: DeadLetter, number: int) -> DeadLetter:
        name = dead_letter_id(letter.id, number)
        return replace(letter, id=name.format(len(self._queues)))


def _id_after(name: DeadLetterId) -> str:
    """An id that is newer than the dead letters of the same time."""
    if name.sequence < (1 << 64) - 1:
        return f"{name.ms}-{name.sequence + 1}"
    return f"{name.ms + 1}-0" if name.ms < (1 << 64) - 1 else "+"


def join_queues(partitions: Partitions, each: Sequence[QueueStore]) -> QueueProtocol:
    """One interface for the queues of all partitions; a single queue is returned as it is."""
    return each[0] if len(each) == 1 else PartitionedQueue(partitions, each)

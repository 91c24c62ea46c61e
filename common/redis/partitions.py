"""Partitions: which queue a job belongs to, and under which names.

With one partition the names are the contract's. With more, each has every key of its jobs under a
hash tag of its own (`{3}:jobs:stream`, `{3}:job:<id>`), so that every script stays within one slot
of a Redis Cluster, and just as atomic. A job's partition follows from its id alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from common.contracts.jobs import JobKeys

#: One that is of its kind alone lives here.
HOME_PARTITION: Final = 0


#: How the names of a partition begin. Scripts know theirs by the queue's:
#: common/jobs/lua/lib/admission.lua.
_TAGGED: Final = re.compile(r"\{[0-9]+\}:")


def validate_queue_name(name: str) -> str:
    """A queue's name; raises ValueError for one that only a partition may have."""
    if _TAGGED.match(name):
        raise ValueError("must not begin like the name of a partition, such as {0}:")
    return name


@dataclass(frozen=True)
class Partitions:
    """The keys of each partition, and which one a job or a name belongs to."""

    keys: tuple[JobKeys, ...]

    @classmethod
    def create(cls, base: JobKeys, count: int = 1) -> Partitions:
        """So many; a single one has the contract's own names."""
        if count == 1:
            return cls((base,))
        return cls(tuple(base.partition(number) for number in range(count)))

    @property
    def count(self) -> int:
        return len(self.keys)

    @property
    def home(self) -> JobKeys:
        """Where everything is that there is one of: workflows, images, API keys, statistics."""
        return self.keys[HOME_PARTITION]

    def number(self, text: str) -> int:
        """The partition of a job's id, or of any other name; the same in every process."""
        count = len(self.keys)
        return 0 if count == 1 else crc32(text.encode(errors="surrogateescape")) % count

    def keys_for_job(self, job_id: str) -> JobKeys:
        """The keys of the partition that a job belongs to."""
        return self.keys[self.number(job_id)]

    def draw_id(self, number: int, new_id: Callable[[], str]) -> str:
        """A new id that belongs to a partition: drawn until one does."""
        while True:
            job_id = new_id()
            if self.number(job_id) == number:
                return job_id

    def limit_per_partition(self, limit: int) -> int:
        """What a limit of the whole leaves to each partition, rounded up."""
        return -(-limit // len(self.keys))

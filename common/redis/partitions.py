"""Partitions: which queue a job belongs to, and the key names of each.

With one partition, keys are named as in the contract. With several, all keys of a partition share
a hash tag (`{3}:jobs:stream`, `{3}:job:<id>`), so that every script stays within one slot of a
Redis Cluster and remains atomic. A job's partition follows from its id alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from sluice.common.contracts.jobs import JobKeys

#: The partition with all singleton data.
HOME_PARTITION: Final = 0


#: Prefix of the key names of a partition. Scripts take theirs from the queue's name:
#: common/jobs/lua/lib/admission.lua.
_TAGGED: Final = re.compile(r"\{[0-9]+\}:")


def validate_queue_name(name: str) -> str:
    """The queue name; raises ValueError if it looks like that of a partition."""
    if _TAGGED.match(name):
        raise ValueError("must not begin like the name of a partition, such as {0}:")
    return name


@dataclass(frozen=True)
class Partitions:
    """The keys of each partition, and the mapping from job ids to partitions."""

    keys: tuple[JobKeys, ...]

    @classmethod
    def create(cls, base: JobKeys, count: int = 1) -> Partitions:
        """`count` partitions; a single one uses the key names of the contract."""
        if count == 1:
            return cls((base,))
        return cls(tuple(base.partition(number) for number in range(count)))

    @property
    def count(self) -> int:
        return len(self.keys)

    @property
    def home(self) -> JobKeys:
        """The keys of partition 0: all singleton data (workflows, images, API keys, statistics)."""
        return self.keys[HOME_PARTITION]

    def number(self, text: str) -> int:
        """The partition of a job id or another name; the same in every process."""
        count = len(self.keys)
        return 0 if count == 1 else crc32(text.encode(errors="surrogateescape")) % count

    def keys_for_job(self, job_id: str) -> JobKeys:
        """The keys of the partition that a job belongs to."""
        return self.keys[self.number(job_id)]

    def draw_id(self, number: int, new_id: Callable[[], str]) -> str:
        """A new id that belongs to the partition `number`."""
        while True:
            job_id = new_id()
            if self.number(job_id) == number:
                return job_id

    def limit_per_partition(self, limit: int) -> int:
        """The share of a global limit for each partition, rounded up."""
        return -(-limit // len(self.keys))

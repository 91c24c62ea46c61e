"""Which jobs have changed, and what pages are told of them: a few a tick, the newest first.

Every event of a job is hinted at, thousands a second where there is much to do, and the index has
those that were accepted. A page shows jobs, not events: it is told of a job when its record has
changed, and of more of them than it could show only that there are more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from common import codec
from common.contracts.jobs import JobField
from common.contracts.workflow import JOB_ID as WORKFLOW_JOB_ID
from common.errors import SluiceError
from common.partition_lines import Line, Lines, answered
from common.store import read
from gateway.job_summary import NAMES, summary

#: Jobs that one event tells of.
MOST_TOLD: Final = 50
#: Changed jobs that wait to be told of; of more it is only told how many they are.
MOST_WAITING: Final = 4 * MOST_TOLD
#: Jobs that are taken from the index in one look.
MOST_NEW: Final = 500
#: Jobs of which it is remembered how they were told last.
REMEMBERED: Final = 4096
#: Whether somebody may see a job, by its id.
MaySee = Callable[[str], bool]


class Changes(NamedTuple):
    """What there is to tell one audience."""

    jobs: list[dict[str, Any]]
    #: How many more have changed, and are not told of.
    more: int

    def __bool__(self) -> bool:
        return bool(self.jobs) or self.more > 0


class Changed:
    """The changed jobs that one audience is still to be told of, and how others were told last."""

    def __init__(self, may_see: MaySee) -> None:
        self._may_see = may_see
        self._waiting: dict[str, None] = {}
        self._more = 0
        self._told: dict[str, tuple[str, int]] = {}

    def add(self, job_ids: Iterable[str]) -> None:
        """These have changed just now."""
        for job_id in job_ids:
            if self._may_see(job_id):
                self._waiting.pop(job_id, None)
                self._waiting[job_id] = None
        while len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self._more += 1

    def take(self) -> list[str]:
        """Those that are told of next, the newest first."""
        return [self._waiting.popitem()[0] for _ in range(min(MOST_TOLD, len(self._waiting)))]

    def news(
        self, job_ids: Iterable[str], found: Mapping[str, dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Those that are not as this audience was told last: another may be further."""
        jobs: list[dict[str, Any]] = []
        for job in (found[job_id] for job_id in job_ids if job_id in found):
            job_id = job[JobField.JOB_ID.value]
            version = (job[JobField.STATUS.value], job[JobField.UPDATED_TS.value])
            if self._told.pop(job_id, None) != version:
                jobs.append(job)
            self._told[job_id] = version
        while len(self._told) > REMEMBERED:
            del self._told[next(iter(self._told))]
        return jobs

    def take_more(self) -> int:
        """How many will never be told of."""
        more, self._more = self._more, 0
        return more


class Newcomers:
    """Jobs that were accepted, which nobody hints at: the indexes of all partitions have them."""

    def __init__(self, lines: Lines) -> None:
        self._each = [_NewcomersOf(line) for line in lines]

    def forget(self) -> None:
        """What comes until the next look is no news."""
        for each in self._each:
            each.forget()

    async def look(self) -> list[str]:
        """Those that have come since the last look, of each partition oldest first; raises
        StoreUnavailable where no partition answers."""
        if len(self._each) == 1:
            return await self._each[0].look()
        found = await answered(*(each.look() for each in self._each))
        pages = (page for page in found if not isinstance(page, SluiceError))
        return [job_id for page in pages for job_id in page]


class _NewcomersOf:
    """The same of one partition."""

    def __init__(self, line: Line) -> None:
        self._client = line.client
        self._index = line.keys.index
        #: Up to when it was read, and which jobs of that very time were seen; None for not at all.
        self._seen: tuple[float, set[bytes]] | None = None

    def forget(self) -> None:
        """What comes until the next look is no news."""
        self._seen = None

    async def look(self) -> list[str]:
        """Those that have come since the last look, oldest first; raises StoreUnavailable."""
        last_ms, known = self._seen or (0.0, set())
        fresh = self._seen is None
        reply = await read(
            self._client.zrevrangebyscore(
                self._index, "+inf", last_ms, start=0, num=1 if fresh else MOST_NEW, withscores=True
            )
        )
        if not reply:
            self._seen = last_ms, known
            return []
        newest_ms = reply[0][1]
        at_newest = {name for name, ms in reply if ms == newest_ms}
        self._seen = newest_ms, at_newest | (known if newest_ms == last_ms else set())
        if fresh:
            return []
        found = [codec.text(name) for name, _ in reversed(reply) if name not in known]
        return [name for name in found if codec.JOB_ID.match(name)]


class Summaries:
    """Reads jobs as pages list them."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    async def read(self, job_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Those that are there; raises StoreUnavailable."""
        ids = list(job_ids)
        if not ids:
            return {}
        names = list(NAMES)
        replies = await self._lines.of_each(
            ids, lambda pipe, line, job_id: pipe.hmget(line.keys.job(job_id), names)
        )
        return {
            job_id: summary(job_id, values)
            for job_id, values in zip(ids, replies)
            if not isinstance(values, Exception) and values[1] is not None  # gone, or none of ours
        }


def core_ids(message: bytes) -> list[str]:
    """The jobs that a hint names; workflows, images and others are told of elsewhere."""
    return [
        name
        for name in codec.text(message).split(" ")
        if codec.JOB_ID.match(name) and not WORKFLOW_JOB_ID.match(name)
    ]

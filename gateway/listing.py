"""Lists jobs, the newest first, in pages that stay bounded whatever is looked for."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from common import codec
from common.contracts.jobs import JobField
from common.errors import SluiceError, StoreUnavailable
from common.index_walk import IndexWalk
from common.merging import Merged
from common.partition_lines import Line, Lines
from common.store import read
from gateway.job_summary import NAMES, summary

log = logging.getLogger(__name__)

#: Ids looked at in one go, and in one request: others' jobs cost no more than this.
LOOK: Final = 500
MOST_LOOKS: Final = 100
#: Ids of one partition of many that are looked at in one go, at least.
SHORTEST_LOOK: Final = 32
#: Jobs that one request reads, and bytes of them; after that the page ends early.
MOST_READ: Final = 2_000
MOST_BYTES: Final = 16 << 20
#: Jobs read at once where only their summaries are; and where their texts are, each of which may be
#: a whole document, however short those before were. Fewer where they come to more than so many
#: bytes.
AT_ONCE: Final = 100
TEXTS_AT_ONCE: Final = 8
BYTES_AT_ONCE: Final = 1 << 20

_TASK, _STATUS = (NAMES.index(each.value) for each in (JobField.TASK, JobField.STATUS))
_TEXTS: Final = (*NAMES, JobField.PAYLOAD.value, JobField.RESULT.value)
#: Behind every id of one time.
_LAST: Final = "~"
#: What a cursor looks like: the time and the id where a page ended.
CURSOR: Final = r"[0-9]{1,16}-(~|[A-Za-z0-9][A-Za-z0-9._-]{0,127})"
#: The beginning of an id of ours that is too long to be a word or a number.
_LONG_PREFIX: Final = re.compile(
    r"[0-9a-f]{8}-([0-9a-f]{0,4}|[0-9a-f]{4}-([0-9a-f]{0,4}|"
    r"[0-9a-f]{4}-([0-9a-f]{0,4}|[0-9a-f]{4}-[0-9a-f]{0,12})))",
    re.IGNORECASE,
)


class Place(NamedTuple):
    """Where a page ended: a time and an id in the index."""

    ms: int
    job_id: str

    @classmethod
    def from_cursor(cls, cursor: str) -> Place:
        """From what looks like one."""
        ms, _, job_id = cursor.partition("-")
        return cls(int(ms), job_id)

    @property
    def cursor(self) -> str:
        """For the next request."""
        return f"{self.ms}-{self.job_id}"


class Search:
    """Text that a job is looked for by: how its id begins, or what it was given or gave."""

    def __init__(self, text: str) -> None:
        self._prefix = text.lower()
        #: Whether it can be nothing else than an id's beginning.
        self.ids_only = _LONG_PREFIX.fullmatch(text) is not None
        lower = text.lower()
        escaped = {lower, json.dumps(lower, ensure_ascii=False)[1:-1], json.dumps(lower)[1:-1]}
        self._needles = tuple(escaped)

    def is_prefix_of(self, job_id: str) -> bool:
        """Whether the id begins with it."""
        return job_id.lower().startswith(self._prefix)

    def is_in(self, texts: Sequence[bytes | None]) -> bool:
        """Whether it is in one of the JSON texts, as it is or as JSON writes it."""
        for raw in texts:
            text = codec.text(raw).lower() if raw else ""
            if any(needle in text for needle in self._needles):
                return True
        return False


@dataclass(frozen=True)
class Wanted:
    """Which jobs; empty sets and None for any."""

    may_see: Callable[[str], bool]
    statuses: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()
    search: Search | None = None
    since_ms: int = 0

    def may_be(self, job_id: str) -> bool:
        """Whether its id says already that it is not wanted."""
        if not codec.JOB_ID.match(job_id) or not self.may_see(job_id):
            return False  # nobody could ask for it
        search = self.search
        return search is None or not search.ids_only or search.is_prefix_of(job_id)

    @property
    def names(self) -> Sequence[str]:
        """Which fields of a job tell whether it is wanted, and what is shown of it."""
        return NAMES if self.search is None or self.search.ids_only else _TEXTS

    def fits(self, job_id: str, values: Sequence[bytes | None]) -> bool:
        """Whether it is one, by its id and the values of `names`."""
        if self.statuses and codec.text(values[_STATUS] or b"") not in self.statuses:
            return False
        if self.tasks and codec.text(values[_TASK] or b"") not in self.tasks:
            return False
        search = self.search
        if search is None or search.is_prefix_of(job_id):
            return True
        return search.is_in(values[len(NAMES) - 1 :])  # the error is the last of the summary's


class Page(NamedTuple):
    """Jobs in a line each, where the next page begins (None: there is none), and how many jobs
    were read for it."""

    jobs: list[dict[str, Any]]
    next: Place | None
    looked_at: int


class JobLister:
    """Goes through the index backwards, and through those of all partitions as one. A page goes on
    where the last one ended, so that new jobs move none to another page."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    async def page(self, wanted: Wanted, limit: int, before: Place | None = None) -> Page:
        """Jobs older than a place; fewer than `limit` where they are long or hard to find."""
        gone: list[str] = []
        try:
            return await self._page(wanted, limit, before, gone)
        finally:
            await self._drop(gone)

    async def _page(
        self, wanted: Wanted, limit: int, before: Place | None, gone: list[str]
    ) -> Page:
        walk = _walk(self._lines, before)
        share = _Share(TEXTS_AT_ONCE if wanted.names is _TEXTS else AT_ONCE)
        found: list[dict[str, Any]] = []
        seen = Place(0, "")
        for _ in range(MOST_LOOKS):
            entries = await walk.next()
            reached = [Place(*entry) for entry in entries if entry[0] >= wanted.since_ms]
            over = walk.over or len(reached) < len(entries)
            for several in share.parts([place for place in reached if wanted.may_be(place.job_id)]):
                records = await self._read(several, wanted.names)
                share.learn(records)
                for seen, values in zip(several, records):
                    if values is None or values[_STATUS] is None:
                        gone.append(seen.job_id)
                    elif wanted.fits(seen.job_id, values):
                        found.append(summary(seen.job_id, values))
                        if len(found) == limit:
                            last = over and seen == reached[-1]
                            return Page(found, None if last else seen, share.read)
                if share.read >= MOST_READ or share.bytes >= MOST_BYTES:
                    return Page(found, seen, share.read)
            if over:
                return Page(found, None, share.read)
        # Whose the last one is may be nobody's business: then only its time is told.
        last_ms = walk.last[0] if walk.last else 0
        return Page(found, seen if seen.ms == last_ms else Place(last_ms, _LAST), share.read)

    async def _read(
        self, places: Sequence[Place], names: Sequence[str]
    ) -> list[Sequence[bytes | None] | None]:
        """Their fields; None for what is no job."""
        fields = list(names)
        job_ids = [place.job_id for place in places]
        replies = await self._lines.of_each(
            job_ids, lambda pipe, line, job_id: pipe.hmget(line.keys.job(job_id), fields)
        )
        for reply in replies:
            if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
                raise StoreUnavailable(str(reply)) from reply
        return [None if isinstance(reply, Exception) else reply for reply in replies]

    async def _drop(self, gone: Sequence[str]) -> None:
        """Forget ids whose jobs have expired; who comes next need not look at them again."""
        for line, ids in self._lines.shares(gone):
            try:
                await read(line.client.zrem(line.keys.index, *ids))
            except SluiceError as error:
                log.debug("%d ids stay in the index: %s", len(ids), error)


def _walk(lines: Lines, before: Place | None) -> IndexWalk | Merged[tuple[int, str]]:
    """Through the only index there is, or through all of them in one order."""

    def through(line: Line, look: int) -> IndexWalk:
        return IndexWalk(line.client, line.keys.index, before, look)

    if len(lines) == 1:
        return through(lines.home, LOOK)
    look = max(SHORTEST_LOOK, LOOK // len(lines))
    return Merged([through(line, look) for line in lines], key=lambda entry: entry)


class _Share:
    """How many jobs to read at once, learnt from how long the last ones were."""

    def __init__(self, most: int) -> None:
        self._most = self._jobs = most
        self.read = 0
        self.bytes = 0

    def parts(self, places: Sequence[Place]) -> Iterator[Sequence[Place]]:
        """A few at a time."""
        while places:
            several, places = places[: self._jobs], places[self._jobs :]
            yield several

    def learn(self, records: Sequence[Sequence[bytes | None] | None]) -> None:
        """These were read together."""
        size = sum(len(value) for values in records for value in values or () if value)
        self.read += len(records)
        self.bytes += size
        if size > BYTES_AT_ONCE:
            self._jobs = max(1, self._jobs // 2)
        elif size < BYTES_AT_ONCE // 4:
            self._jobs = min(self._most, self._jobs * 2)

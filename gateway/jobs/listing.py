"""`GET /v1/jobs`: lists jobs, newest first. The work per page is bounded for any filter."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.access.record import tenant_tail
from sluice.common.contracts.jobs import JobField, Status, Task
from sluice.common.errors import SluiceError, StoreUnavailable
from sluice.common.jobs.pagination import IndexCursor, MergedPages
from sluice.common.jobs.partition_clients import PartitionClient, PartitionClients
from sluice.common.jobs.store import read_reply
from sluice.common.text import plural
from sluice.gateway.auth.callers import Caller, caller_of
from sluice.gateway.http.problems import Problem
from sluice.gateway.jobs.models import SUMMARY_FIELD_NAMES, JobPage, Time, summary
from sluice.gateway.jobs.openapi import LIST_JOBS
from sluice.gateway.state import state_of

log = logging.getLogger(__name__)

#: Ids scanned per batch, and batches per request.
SCAN_BATCH: Final = 500
MAX_SCANS: Final = 100
#: Least ids scanned per batch in each partition, if there are several.
MIN_SCAN_BATCH: Final = 32
#: Most jobs and bytes that one request reads; then the page ends early.
MOST_READ: Final = 2_000
MOST_BYTES: Final = 16 << 20
#: Jobs read at once: summaries only, or with payload and result, each of which may be a whole
#: document. Fewer if they have more than BYTES_AT_ONCE.
AT_ONCE: Final = 100
TEXTS_AT_ONCE: Final = 8
BYTES_AT_ONCE: Final = 1 << 20

_TASK, _STATUS = (SUMMARY_FIELD_NAMES.index(each) for each in (JobField.TASK, JobField.STATUS))
_TEXTS: Final = (*SUMMARY_FIELD_NAMES, JobField.PAYLOAD, JobField.RESULT)
#: Sorts after every id with the same time.
_LAST: Final = "~"
#: Pattern of a cursor: the time and the id at the end of a page.
CURSOR: Final = r"[0-9]{1,16}-(~|[A-Za-z0-9][A-Za-z0-9._-]{0,127})"
#: A prefix of a job id that is too long to be a word or a number.
_LONG_PREFIX: Final = re.compile(
    r"[0-9a-f]{8}-([0-9a-f]{0,4}|[0-9a-f]{4}-([0-9a-f]{0,4}|"
    r"[0-9a-f]{4}-([0-9a-f]{0,4}|[0-9a-f]{4}-[0-9a-f]{0,12})))",
    re.IGNORECASE,
)


class JobPosition(NamedTuple):
    """A position in the index: a time and a job id."""

    ms: int
    job_id: str

    @classmethod
    def from_cursor(cls, cursor: str) -> JobPosition:
        ms, _, job_id = cursor.partition("-")
        return cls(int(ms), job_id)

    @property
    def cursor(self) -> str:
        return f"{self.ms}-{self.job_id}"


class JobSearch:
    """A search text: a prefix of the job id, or part of payload, result or error."""

    def __init__(self, text: str) -> None:
        self._prefix = text.lower()
        #: True if the text can only be the prefix of an id.
        self.ids_only = _LONG_PREFIX.fullmatch(text) is not None
        lower = text.lower()
        escaped = {lower, json.dumps(lower, ensure_ascii=False)[1:-1], json.dumps(lower)[1:-1]}
        self._needles = tuple(escaped)

    def is_prefix_of(self, job_id: str) -> bool:
        return job_id.lower().startswith(self._prefix)

    def is_in(self, texts: Sequence[bytes | None]) -> bool:
        """True if one of the JSON texts contains it, literally or JSON-escaped."""
        for raw in texts:
            text = codec.decode_text(raw).lower() if raw else ""
            if any(needle in text for needle in self._needles):
                return True
        return False


@dataclass(frozen=True)
class JobFilter:
    """Selects jobs; empty sets and None match any."""

    may_see: Callable[[str], bool]
    statuses: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()
    search: JobSearch | None = None
    since_ms: int = 0

    def may_match(self, job_id: str) -> bool:
        """False if the id alone excludes the job."""
        if not codec.JOB_ID_PATTERN.match(job_id) or not self.may_see(job_id):
            return False  # no request could read it
        search = self.search
        return search is None or not search.ids_only or search.is_prefix_of(job_id)

    @property
    def field_names(self) -> Sequence[str]:
        """The fields of the hash that are needed to filter and to show a job."""
        return SUMMARY_FIELD_NAMES if self.search is None or self.search.ids_only else _TEXTS

    def matches(self, job_id: str, values: Sequence[bytes | None]) -> bool:
        """True if the job passes. `values`: of `field_names`."""
        if self.statuses and codec.decode_text(values[_STATUS] or b"") not in self.statuses:
            return False
        if self.tasks and codec.decode_text(values[_TASK] or b"") not in self.tasks:
            return False
        search = self.search
        if search is None or search.is_prefix_of(job_id):
            return True
        return search.is_in(
            values[len(SUMMARY_FIELD_NAMES) - 1 :]
        )  # the error is the last field of the summary


class JobListing(NamedTuple):
    """A page of job summaries, the position of the next page (None: last page), and how many jobs
    were read for it."""

    jobs: list[dict[str, Any]]
    next: JobPosition | None
    looked_at: int


class JobLister:
    """Scans the index from the newest job on, merging the indexes of all partitions.

    A page starts where the previous one ended, so that new jobs do not shift pages.
    """

    def __init__(self, lines: PartitionClients) -> None:
        self._lines = lines

    async def page(
        self, wanted: JobFilter, limit: int, before: JobPosition | None = None
    ) -> JobListing:
        """Jobs older than a position; fewer than `limit` if they are long or rarely match."""
        gone: list[str] = []
        try:
            return await self._page(wanted, limit, before, gone)
        finally:
            await self._drop(gone)

    async def _page(
        self, wanted: JobFilter, limit: int, before: JobPosition | None, gone: list[str]
    ) -> JobListing:
        walk = _open_cursor(self._lines, before)
        share = _BatchSizer(TEXTS_AT_ONCE if wanted.field_names is _TEXTS else AT_ONCE)
        found: list[dict[str, Any]] = []
        seen = JobPosition(0, "")
        for _ in range(MAX_SCANS):
            entries = await walk.next()
            reached = [JobPosition(*entry) for entry in entries if entry[0] >= wanted.since_ms]
            over = walk.exhausted or len(reached) < len(entries)
            for batch in share.batches(
                [position for position in reached if wanted.may_match(position.job_id)]
            ):
                records = await self._read(batch, wanted.field_names)
                share.record_batch(records)
                for seen, values in zip(batch, records):
                    if values is None or values[_STATUS] is None:
                        gone.append(seen.job_id)
                    elif wanted.matches(seen.job_id, values):
                        found.append(summary(seen.job_id, values))
                        if len(found) == limit:
                            last = over and seen == reached[-1]
                            return JobListing(found, None if last else seen, share.read)
                if share.read >= MOST_READ or share.bytes >= MOST_BYTES:
                    return JobListing(found, seen, share.read)
            if over:
                return JobListing(found, None, share.read)
        # The last id may belong to another tenant: then the cursor has only its time.
        last_ms = walk.last[0] if walk.last else 0
        return JobListing(
            found, seen if seen.ms == last_ms else JobPosition(last_ms, _LAST), share.read
        )

    async def _read(
        self, positions: Sequence[JobPosition], names: Sequence[str]
    ) -> list[Sequence[bytes | None] | None]:
        """The fields of each job; None for a key that is not a hash."""
        fields = list(names)
        job_ids = [position.job_id for position in positions]
        replies = await self._lines.query_jobs(
            job_ids, lambda pipe, line, job_id: pipe.hmget(line.keys.job(job_id), fields)
        )
        for reply in replies:
            if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
                raise StoreUnavailable(str(reply)) from reply
        return [None if isinstance(reply, Exception) else reply for reply in replies]

    async def _drop(self, gone: Sequence[str]) -> None:
        """Remove the ids of expired jobs from the index."""
        for line, ids in self._lines.group_jobs(gone):
            try:
                await read_reply(line.client.zrem(line.keys.index, *ids))
            except SluiceError as error:
                log.debug("%s in the index: %s", plural(len(ids), "id stays", "ids stay"), error)


def _open_cursor(
    lines: PartitionClients, before: JobPosition | None
) -> IndexCursor | MergedPages[tuple[int, str]]:
    """A cursor over the single index, or over all indexes merged."""

    def through(line: PartitionClient, batch_size: int) -> IndexCursor:
        return IndexCursor(line.client, line.keys.index, before, batch_size)

    if len(lines) == 1:
        return through(lines.home, SCAN_BATCH)
    batch_size = max(MIN_SCAN_BATCH, SCAN_BATCH // len(lines))
    return MergedPages([through(line, batch_size) for line in lines], key=lambda entry: entry)


class _BatchSizer:
    """Adapts the number of jobs read at once to the size of the last ones."""

    def __init__(self, most: int) -> None:
        self._most = self._jobs = most
        self.read = 0
        self.bytes = 0

    def batches(self, positions: Sequence[JobPosition]) -> Iterator[Sequence[JobPosition]]:
        while positions:
            batch, positions = positions[: self._jobs], positions[self._jobs :]
            yield batch

    def record_batch(self, records: Sequence[Sequence[bytes | None] | None]) -> None:
        size = sum(len(value) for values in records for value in values or () if value)
        self.read += len(records)
        self.bytes += size
        if size > BYTES_AT_ONCE:
            self._jobs = max(1, self._jobs // 2)
        elif size < BYTES_AT_ONCE // 4:
            self._jobs = min(self._most, self._jobs * 2)


_JSON = "application/json"

router = APIRouter(tags=["jobs"])


@router.get("/v1/jobs", response_model=JobPage, summary="List jobs", **LIST_JOBS)
async def list_jobs(
    request: Request,
    status: Annotated[
        list[Status] | None, Query(description="Only jobs with this status; may be repeated.")
    ] = None,
    task: Annotated[
        list[Task] | None, Query(description="Only jobs of this task; may be repeated.")
    ] = None,
    q: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=200,
            description="Only jobs whose id starts with this, or whose payload, result or error "
            "contains it, ignoring case.",
        ),
    ] = None,
    since: Annotated[
        Time | None,
        Query(description="Only jobs accepted at this time or later: Unix ms or RFC 3339."),
    ] = None,
    until: Annotated[Time | None, Query(description="Only jobs accepted before this time.")] = None,
    tenant: Annotated[
        str | None,
        Query(pattern="^[a-z0-9][a-z0-9-]{0,62}$", description="Only jobs of this tenant."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of jobs.")] = 50,
    cursor: Annotated[
        str | None, Query(pattern=f"^{CURSOR}$", description="`next` of the previous page.")
    ] = None,
) -> Response:
    """Returns job summaries, newest first. Only the last JOB_INDEX_MAX jobs are listed."""
    state = state_of(request)
    if not state.settings.job_index_max:
        raise Problem(404, "listing_off", "This gateway keeps no list of jobs; see JOB_INDEX_MAX.")
    wanted = JobFilter(
        may_see=_VisibilityFilter(caller_of(request), tenant),
        statuses=frozenset(each.value for each in status or ()),
        tasks=frozenset(each.value for each in task or ()),
        search=None if q is None else JobSearch(q),
        since_ms=since or 0,
    )
    page = await JobLister(state.lines).page(wanted, limit, _before(cursor, until))
    found = {
        "jobs": page.jobs,
        "next": None if page.next is None else page.next.cursor,
        "looked_at": page.looked_at,
    }
    return Response(codec.dumps(found), 200, media_type=_JSON)


class _VisibilityFilter:
    """Selects the ids that a caller may see, of one tenant or of all."""

    def __init__(self, caller: Caller, tenant: str | None) -> None:
        self._caller = caller
        self._tail = tenant_tail(tenant or "")

    def __call__(self, job_id: str) -> bool:
        return self._caller.may_see(job_id) and job_id.endswith(self._tail)


def _before(cursor: str | None, until: int | None) -> JobPosition | None:
    """The start of the page: after the previous one, and before a time."""
    bounds = [] if cursor is None else [JobPosition.from_cursor(cursor)]
    if until is not None:
        bounds.append(JobPosition(until, ""))
    return min(bounds, default=None)

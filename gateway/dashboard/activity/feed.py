"""The live feed behind `GET /v1/stream`: one reader per gateway, however many pages are open.

The reader starts with the first subscriber and stops with the last. A few times a second it reads
new history samples and the jobs that hints name as changed, and encodes each update once for all
subscribers of one audience.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from sluice.common import codec
from sluice.common.aio import cancel
from sluice.common.contracts.jobs import EventField, JobField
from sluice.common.contracts.stats import ONE_SECOND, FeedEvent, StatsKeys
from sluice.common.contracts.workflow.statuses import WORKFLOW_JOB_ID_PATTERN as WORKFLOW_JOB_ID
from sluice.common.errors import SluiceError
from sluice.common.jobs.partition_clients import PartitionClient, PartitionClients, gather_partial
from sluice.common.jobs.store import read_reply
from sluice.gateway.auth.callers import Caller
from sluice.gateway.dashboard.activity.subscriber import ActivitySubscriber
from sluice.gateway.events.base import BaseHub
from sluice.gateway.events.frames import Frame, escape_line_breaks
from sluice.gateway.events.hub import SseMetrics
from sluice.gateway.events.subscriber import format_position
from sluice.gateway.jobs.models import SUMMARY_FIELD_NAMES, summary
from sluice.gateway.observability.history.reader import HistoryReader
from sluice.gateway.observability.history.rings import Rings
from sluice.gateway.observability.history.samples import Point
from sluice.gateway.state import GatewayState

#: Maximum number of jobs in one event.
MAX_JOBS_PER_EVENT: Final = 50
#: Maximum number of changed jobs that wait to be sent. Beyond it only their count is sent.
MAX_PENDING_CHANGES: Final = 4 * MAX_JOBS_PER_EVENT
#: Maximum number of new jobs read from the index in one scan.
MAX_NEW_JOBS: Final = 500
#: Maximum number of jobs whose last sent state is remembered.
MAX_TRACKED_JOBS: Final = 4096
#: Takes a job id; true if the audience may see that job.
MaySee = Callable[[str], bool]


class ChangeBatch(NamedTuple):
    """Job changes to send to one audience."""

    jobs: list[dict[str, Any]]
    #: Number of further changed jobs that are not listed.
    more: int

    def __bool__(self) -> bool:
        return bool(self.jobs) or self.more > 0


class ChangeTracker:
    """The pending job changes of one audience, and the state that was last sent for each job."""

    def __init__(self, may_see: MaySee) -> None:
        self._may_see = may_see
        self._waiting: dict[str, None] = {}
        self._more = 0
        self._reported: dict[str, tuple[str, int]] = {}

    def add(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            if self._may_see(job_id):
                self._waiting.pop(job_id, None)
                self._waiting[job_id] = None
        while len(self._waiting) > MAX_PENDING_CHANGES:
            del self._waiting[next(iter(self._waiting))]
            self._more += 1

    def take(self) -> list[str]:
        """Remove and return the ids of the next jobs to send, newest first."""
        return [
            self._waiting.popitem()[0] for _ in range(min(MAX_JOBS_PER_EVENT, len(self._waiting)))
        ]

    def filter_unreported(
        self, job_ids: Iterable[str], found: Mapping[str, dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The jobs whose state differs from the one last sent to this audience."""
        jobs: list[dict[str, Any]] = []
        for job in (found[job_id] for job_id in job_ids if job_id in found):
            job_id = job[JobField.JOB_ID]
            version = (job[JobField.STATUS], job[JobField.UPDATED_TS])
            if self._reported.pop(job_id, None) != version:
                jobs.append(job)
            self._reported[job_id] = version
        while len(self._reported) > MAX_TRACKED_JOBS:
            del self._reported[next(iter(self._reported))]
        return jobs

    def take_overflow(self) -> int:
        """Return the number of dropped changes, and reset it."""
        more, self._more = self._more, 0
        return more


class NewJobScanner:
    """Finds newly accepted jobs in the indexes of all partitions; no hints are sent for these."""

    def __init__(self, lines: PartitionClients) -> None:
        self._scanners = [_PartitionScanner(line) for line in lines]

    def forget(self) -> None:
        """Reset the position: jobs accepted before the next scan are not reported."""
        for scanner in self._scanners:
            scanner.forget()

    async def scan(self) -> list[str]:
        """Ids of the jobs accepted since the last scan, oldest first within each partition.

        Raises StoreUnavailable if no partition answers.
        """
        if len(self._scanners) == 1:
            return await self._scanners[0].scan()
        found = await gather_partial(*(scanner.scan() for scanner in self._scanners))
        pages = (page for page in found if not isinstance(page, SluiceError))
        return [job_id for page in pages for job_id in page]


class _PartitionScanner:
    """Finds the newly accepted jobs of one partition."""

    def __init__(self, line: PartitionClient) -> None:
        self._client = line.client
        self._index = line.keys.index
        #: Score up to which the index was read, and the jobs already seen at that score; None
        #: before the first scan.
        self._seen: tuple[float, set[bytes]] | None = None

    def forget(self) -> None:
        self._seen = None

    async def scan(self) -> list[str]:
        """Ids of the jobs accepted since the last scan, oldest first; raises StoreUnavailable."""
        last_ms, known = self._seen or (0.0, set())
        fresh = self._seen is None
        reply = await read_reply(
            self._client.zrevrangebyscore(
                self._index,
                "+inf",
                last_ms,
                start=0,
                num=1 if fresh else MAX_NEW_JOBS,
                withscores=True,
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
        found = [codec.decode_text(name) for name, _ in reversed(reply) if name not in known]
        return [name for name in found if codec.JOB_ID_PATTERN.match(name)]


class JobSummaryReader:
    """Reads the fields of jobs that job lists show."""

    def __init__(self, lines: PartitionClients) -> None:
        self._lines = lines

    async def read(self, job_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Summaries by job id; missing jobs are left out. Raises StoreUnavailable."""
        ids = list(job_ids)
        if not ids:
            return {}
        names = list(SUMMARY_FIELD_NAMES)
        replies = await self._lines.query_jobs(
            ids, lambda pipe, line, job_id: pipe.hmget(line.keys.job(job_id), names)
        )
        return {
            job_id: summary(job_id, values)
            for job_id, values in zip(ids, replies)
            if not isinstance(values, Exception) and values[1] is not None  # expired or not a job
        }


def job_ids_in_hint(message: bytes) -> list[str]:
    """The ids of core jobs in a hint; workflows, images and others are left out."""
    return [
        name
        for name in codec.decode_text(message).split(" ")
        if codec.JOB_ID_PATTERN.match(name) and not WORKFLOW_JOB_ID.match(name)
    ]


log = logging.getLogger(__name__)

#: Seconds between two reads; all changes in between are sent in one event.
TICK_S: Final = 0.25
#: Audience of callers that may see the jobs of every tenant.
ALL_TENANTS: Final = ""


class ActivityFeed(BaseHub[ActivitySubscriber]):
    """The hub of all `/v1/stream` subscribers in this process."""

    def __init__(
        self,
        lines: PartitionClients,
        history: HistoryReader,
        numbers: SseMetrics,
        heartbeat_s: float,
        max_life_s: float,
        tick_s: float = TICK_S,
    ) -> None:
        super().__init__(heartbeat_s, max_life_s)
        self._history = history
        self._metrics = numbers
        self._tick_s = tick_s
        self._summaries = JobSummaryReader(lines)
        self._new_jobs = NewJobScanner(lines)
        #: By audience: the suffix of the job ids that it may see.
        self._trackers: dict[str, ChangeTracker] = {}
        self._reader: asyncio.Task[None] | None = None

    # -- for routes ------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Set the scan position before the first subscriber to jobs; only later jobs are reported.

        Raises StoreUnavailable.
        """
        if not self._trackers:
            self._new_jobs.forget()
            await self._new_jobs.scan()

    def subscribe(
        self, caller: Caller | None, points: Sequence[Point] | None, after: int
    ) -> ActivitySubscriber:
        """Open a subscription; the caller of this method closes it.

        `caller`: subscribe to the jobs that it may see; None for no jobs. `points`: history points
        to send first, all later than `after`; None for no points at all.
        """
        audience = None
        if caller is not None:
            audience = ALL_TENANTS if caller.sees_all else caller.tail
            self._trackers.setdefault(audience, ChangeTracker(caller.may_see))
        watch = ActivitySubscriber(self, audience, None if points is None else after)
        self._add(watch)
        if after and points and points[0].ts > after + ONE_SECOND.step_ms:
            self._metrics.gaps += 1
            watch.queue_gap(after, points[0].ts)
        watch.deliver_points([_point_frame(point) for point in points or ()])
        if not self.closing and (self._reader is None or self._reader.done()):
            self._reader = asyncio.create_task(self._run(), name="feed")
        return watch

    # -- for subscribers -------------------------------------------------------------------

    def forget(self, watch: ActivitySubscriber) -> None:
        super().forget(watch)
        left = watch.audience
        if left is not None and not any(each.audience == left for each in self._subscribers):
            self._trackers.pop(left, None)

    def slow(self) -> None:
        """Count a subscriber that reads so slowly that events were dropped."""
        self._metrics.slow += 1

    # -- lifecycle -------------------------------------------------------------------------

    def on_hint(self, message: bytes) -> None:
        if self._trackers:
            job_ids = job_ids_in_hint(message)
            for changed in self._trackers.values():
                changed.add(job_ids)

    async def stop(self) -> None:
        await super().stop()
        if self._reader is not None:
            await cancel(self._reader)

    async def _run(self) -> None:
        """Read and publish until the last subscriber has left; errors are retried next time."""
        while self._subscribers:
            try:
                await self.run_once()
            except SluiceError as error:
                log.info("live feed: update failed, retrying: %s", error)
            except Exception:  # the feed must survive any error
                log.exception("live feed: update failed with an unexpected error, retrying")
            self._send_heartbeats()
            await asyncio.sleep(self._tick_s)

    async def run_once(self) -> None:
        await self._publish_points()
        await self._publish_jobs()

    async def _publish_points(self) -> None:
        watches = [watch for watch in self._subscribers if watch.after is not None]
        if not watches:
            return
        points = await self._history.points(ONE_SECOND, min(watch.after or 0 for watch in watches))
        frames = [_point_frame(point) for point in points]
        newest = self._history.newest
        for watch in watches:
            watch.deliver_points(frames)
            if newest is not None:
                watch.clamp_to(newest.ts)

    async def _publish_jobs(self) -> None:
        if not self._trackers:
            return
        new_ids = await self._new_jobs.scan()
        for changed in self._trackers.values():
            changed.add(new_ids)
        batches = {audience: changed.take() for audience, changed in self._trackers.items()}
        ids = dict.fromkeys(job_id for job_ids in batches.values() for job_id in job_ids)
        try:
            found = await self._summaries.read(ids)
        except Exception:
            for audience, job_ids in batches.items():
                if audience in self._trackers:
                    self._trackers[audience].add(reversed(job_ids))
            raise
        for audience, job_ids in batches.items():
            if audience not in self._trackers:  # its last subscriber has left meanwhile
                continue
            changed = self._trackers[audience]
            changes = ChangeBatch(
                changed.filter_unreported(job_ids, found), changed.take_overflow()
            )
            if changes:
                frame = _jobs_frame(changes)
                for watch in self._subscribers:
                    if watch.audience == audience:
                        watch.deliver_jobs(frame)


def _point_frame(point: Point) -> Frame:
    position = (point.ts, 0)
    return _frame(format_position(position), FeedEvent.STATS, codec.dumps(point.view()), position)


def _jobs_frame(changes: ChangeBatch) -> Frame:
    return _frame("", FeedEvent.JOBS, codec.dumps({"jobs": changes.jobs, "more": changes.more}))


def _frame(
    event_id: str, kind: FeedEvent, data: bytes, position: tuple[int, int] = (0, 0)
) -> Frame:
    name, word, data = event_id.encode(), kind.value.encode(), escape_line_breaks(data)
    sse = b"%bevent: %b\ndata: %b\n\n" % (b"id: %b\n" % name if name else b"", word, data)
    members = (b'"id":"%b",' % name if name else b"", _TYPE, word, _DATA, data)
    ndjson = b'{%b"%b":"%b","%b":%b}\n' % members
    # A sample is written at the end of its interval.
    written_ms = position[0] + ONE_SECOND.step_ms if name else 0
    return Frame(event_id, sse, ndjson, kind.value, position, written_ms)


_TYPE: Final = EventField.TYPE.encode()
_DATA: Final = EventField.DATA.encode()


@dataclass(frozen=True)
class HistoryServices:
    """The history reader and the live feed, built when the app starts."""

    reader: HistoryReader
    #: Streams new samples and changed jobs to dashboard pages.
    feed: ActivityFeed

    @classmethod
    def build(cls, state: GatewayState) -> HistoryServices:
        """The routes and the feed share one reader and its cache."""
        settings = state.settings
        reader = HistoryReader(Rings(state.client, StatsKeys(settings.keys.queue)))
        feed = ActivityFeed(
            state.lines,
            reader,
            state.hub.metrics,
            settings.sse_heartbeat_s,
            settings.sse_max_life_s,
        )
        return cls(reader, feed)


def history_of(request: Request) -> HistoryServices:
    services: HistoryServices = request.app.state.history
    return services

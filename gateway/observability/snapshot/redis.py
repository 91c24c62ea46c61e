"""Facts read from Redis for `/metrics` and `/v1/status`, in two or three round trips."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from sluice.common.contracts.images import ImageKeys
from sluice.common.contracts.queue import paused_key
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.jobs.audit.report import AUDIT_FIELDS, AuditRecord
from sluice.common.jobs.pause import Pause, parse_pause
from sluice.common.jobs.queue_stats import JobCounts, QueueReading
from sluice.common.observability import heartbeats
from sluice.common.observability.heartbeats import Heartbeat, WaitingReading
from sluice.common.redis.connection import execute_pipeline
from sluice.common.redis.partitions import HOME_PARTITION
from sluice.gateway.features.images import metrics as image_numbers
from sluice.gateway.features.images.metrics import ImageFacts
from sluice.gateway.observability.snapshot.limits import SharedLimit, shared_limits, waiting_in
from sluice.gateway.observability.snapshot.partitions import (
    PartitionFacts,
    PartitionQuery,
    merge_counts,
    merge_queues,
    read_other_partitions,
    total,
)
from sluice.gateway.state import GatewayState

#: Number of replies to `add_workflow_commands`.
WORKFLOW_REPLIES: Final = 4


@dataclass(frozen=True, slots=True)
class WorkflowFacts:
    """Counts of workflow jobs and webhooks; None for unknown values."""

    running: int | None = None
    waiting_input: int | None = None
    #: Webhooks with pending deliveries.
    webhooks_waiting: int | None = None
    #: Deliveries that failed after all attempts.
    webhooks_dead: int | None = None


def add_workflow_commands(pipe: Any, keys: WorkflowKeys) -> None:
    pipe.hlen(keys.running)
    pipe.zcard(keys.reviews)
    pipe.zcard(keys.deliveries)
    pipe.xlen(keys.dead_letters)


def parse_workflow_replies(replies: Sequence[Any]) -> WorkflowFacts:
    return WorkflowFacts(*(reply if isinstance(reply, int) else None for reply in replies))


#: Timeout for partitions other than the home partition; shorter than that of the routes.
OTHER_PARTITIONS_TIMEOUT_S: Final = 1.0
#: Value of `maxmemory` in INFO if there is no limit.
_UNBOUNDED = 0


class StallTracker:
    """Measures how long the queue has not advanced, as observed by this process.

    A gateway does not read the messages of the queue. Without a live worker that reports the age of
    the oldest message, this time is a lower bound for it.
    """

    def __init__(self) -> None:
        self._delivered: str | None = None
        self._since_s = 0.0
        #: Trackers of the other partitions, by number.
        self._others: dict[int, StallTracker] = {}

    def age_s(self, delivered: str | None, waiting: int | None, now_s: float) -> float | None:
        """Lower bound for the age of the oldest waiting message; None if unknown."""
        if delivered is None or waiting is None:
            self._delivered = None
            return None
        if not waiting:
            self._delivered = None
            return 0.0
        if delivered != self._delivered:
            self._delivered, self._since_s = delivered, now_s
        return now_s - self._since_s

    def longest_s(self, seen: Sequence[PartitionFacts], now_s: float) -> float | None:
        """The highest `age_s` of all partitions."""
        ages = [
            self._of(each.number).age_s(each.delivered, each.queue.waiting, now_s) for each in seen
        ]
        return max((age for age in ages if age is not None), default=None)

    def _of(self, number: int) -> StallTracker:
        return self if number == HOME_PARTITION else self._others.setdefault(number, StallTracker())


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """Facts read from Redis at one time; None for unknown values."""

    rtt_s: float
    #: Seconds by which the clock of Redis is ahead.
    clock_skew_s: float
    queue: QueueReading
    oldest_age_s: float | None
    scheduled: int | None
    dead_letters: int | None
    counts: JobCounts | None
    audits: AuditRecord | None
    workers: list[Heartbeat]
    #: Reply to INFO; empty if the command is not permitted.
    info: dict[str, Any]
    #: Limits that workers share.
    limits: list[SharedLimit] = field(default_factory=list)
    #: Jobs that wait for a slot, by task.
    waiting: dict[str, WaitingReading] = field(default_factory=dict)
    #: Time of Redis.
    now_ms: int = 0
    workflows: WorkflowFacts = field(default_factory=WorkflowFacts)
    images: ImageFacts = field(default_factory=ImageFacts)
    #: None while the queue is not paused.
    paused: Pause | None = None
    #: All partitions, the home partition first.
    partitions: list[PartitionFacts] = field(default_factory=list)

    def age_s(self, since_ms: int) -> float | None:
        """Seconds since a time, by the clock of Redis; None if the time is 0 (unknown)."""
        return max(0.0, (self.now_ms - since_ms) / 1000) if since_ms else None

    @property
    def memory_ratio(self) -> float | None:
        """Share of memory in use, from 0 to 1; of several servers, the highest."""
        infos = [self.info, *(each.info for each in self.partitions)]
        ratios = [memory_ratio(info) for info in infos]
        return max((ratio for ratio in ratios if ratio is not None), default=None)

    @property
    def backlog(self) -> int | None:
        """Number of waiting and running messages; None if unknown."""
        if self.queue.waiting is None or self.queue.pending is None:
            return None
        return self.queue.waiting + self.queue.pending


async def read_facts(state: GatewayState, stall_tracker: StallTracker) -> RedisFacts:
    """Read all facts. Raises the connection error if the home partition does not answer."""
    lines, group = state.lines, state.settings.worker_group
    others = (
        asyncio.ensure_future(read_other_partitions(lines, group, OTHER_PARTITIONS_TIMEOUT_S))
        if len(lines) > 1
        else None
    )
    try:
        return await _read_facts(state, stall_tracker, others)
    finally:
        if others is not None:
            others.cancel()


async def _read_facts(
    state: GatewayState,
    stall_tracker: StallTracker,
    others: Awaitable[list[PartitionFacts]] | None,
) -> RedisFacts:
    keys = state.settings.keys
    home = PartitionQuery(state.lines.home, state.settings.worker_group)
    started = time.perf_counter()
    sent_s = time.time()
    async with state.client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.hmget(keys.audit, list(AUDIT_FIELDS))
        pipe.get(paused_key(keys.queue))
        pipe.info()
        add_workflow_commands(pipe, WorkflowKeys(state.store.keys.tag))
        image_numbers.add_commands(pipe, ImageKeys(state.store.keys.tag))
        heartbeats.add_names_query(pipe, keys)
        home.add_queries(pipe)
        replies = await execute_pipeline(pipe)
    rtt_s = time.perf_counter() - started
    clock, audits, paused, info, *rest = replies
    workflows, rest = rest[:WORKFLOW_REPLIES], rest[WORKFLOW_REPLIES:]
    images, (names, *own) = rest[: image_numbers.REPLIES], rest[image_numbers.REPLIES :]
    workers = await _workers(state, heartbeats.parse_worker_names(names))
    partitions = [home.parse_replies(own), *(() if others is None else await others)]
    reading = fill_from_workers(workers, merge_queues(partitions)).with_estimate()
    now_s = time.time()
    now_ms = int(clock[0] * 1000 + clock[1] // 1000)
    waited_s = stall_tracker.longest_s(partitions, now_s)
    return RedisFacts(
        rtt_s=rtt_s,
        clock_skew_s=clock[0] + clock[1] / 1e6 - sent_s - rtt_s / 2,
        queue=reading,
        oldest_age_s=oldest_age_s(reading, waited_s, now_s),
        scheduled=total([each.scheduled for each in partitions]),
        dead_letters=total([each.dead_letters for each in partitions]),
        counts=merge_counts([each.counts for each in partitions]),
        audits=None if isinstance(audits, Exception) else AuditRecord.from_values(audits),
        workers=workers,
        info=info if isinstance(info, dict) else {},
        limits=await shared_limits(state, workers, now_ms),
        waiting=waiting_in(workers),
        now_ms=now_ms,
        workflows=parse_workflow_replies(workflows),
        images=image_numbers.parse_replies(images),
        paused=parse_pause(paused),
        partitions=partitions,
    )


async def _workers(state: GatewayState, names: list[str]) -> list[Heartbeat]:
    if not names:
        return []
    async with state.client.pipeline(transaction=False) as pipe:
        heartbeats.add_heartbeats_query(pipe, state.settings.keys, names)
        [replies] = await pipe.execute(raise_on_error=False)
    return heartbeats.parse_heartbeats(replies, names)


def fill_from_workers(workers: list[Heartbeat], reading: QueueReading) -> QueueReading:
    """Fill unknown values from the most recent heartbeat.

    They are unknown if Redis does not know them or the gateway lacks the permission to read them.
    """
    if not workers:
        return reading
    reported = max(workers, key=lambda beat: beat.seen_ms).queue
    known = {name: value for name, value in asdict(reading).items() if value is not None}
    return replace(reported, **known)


def oldest_age_s(reading: QueueReading, waited_s: float | None, now_s: float) -> float | None:
    """Age of the oldest message as reported by a worker; otherwise the lower bound `waited_s`."""
    if reading.waiting == 0:
        return 0.0
    if reading.oldest_ms is None:
        return waited_s
    return max(0.0, now_s - reading.oldest_ms / 1000) if reading.oldest_ms else 0.0


def memory_ratio(info: Mapping[str, Any]) -> float | None:
    """Used memory as a share of maxmemory, or of the machine's memory if that is not set."""
    used = info.get("used_memory")
    most = info.get("maxmemory") or info.get("total_system_memory") or _UNBOUNDED
    if not isinstance(used, int) or not isinstance(most, int) or most <= 0:
        return None
    return used / most

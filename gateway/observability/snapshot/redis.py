"""What only Redis knows, for `/metrics` and `/v1/status`: two or three round trips, not more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from common.contracts.images import ImageKeys
from common.contracts.queue import paused_key
from common.contracts.workflow.keys import WorkflowKeys
from common.jobs.audit.report import AUDIT_FIELDS, AuditRecord
from common.jobs.pause import Pause, parse_pause
from common.jobs.queue_stats import JobCounts, QueueReading
from common.observability import heartbeats
from common.observability.heartbeats import Heartbeat, WaitingReading
from common.redis.connection import execute_pipeline
from common.redis.partitions import HOME_PARTITION
from gateway.features.images import metrics as image_numbers
from gateway.features.images.metrics import ImageFacts
from gateway.observability.snapshot.limits import SharedLimit, shared_limits, waiting_in
from gateway.observability.snapshot.partitions import (
    PartitionFacts,
    PartitionQuery,
    merge_counts,
    merge_queues,
    read_other_partitions,
    total,
)
from gateway.state import GatewayState

#: How many replies they bring.
WORKFLOW_REPLIES: Final = 4


@dataclass(frozen=True, slots=True)
class WorkflowFacts:
    """None for what Redis did not tell."""

    running: int | None = None
    waiting_input: int | None = None
    #: Webhooks of jobs that were not told everything yet, and deliveries that were given up.
    webhooks_waiting: int | None = None
    webhooks_dead: int | None = None


def add_workflow_commands(pipe: Any, keys: WorkflowKeys) -> None:
    """Add what has to be asked to a pipeline."""
    pipe.hlen(keys.running)
    pipe.zcard(keys.reviews)
    pipe.zcard(keys.deliveries)
    pipe.xlen(keys.dead_letters)


def parse_workflow_replies(replies: Sequence[Any]) -> WorkflowFacts:
    return WorkflowFacts(*(reply if isinstance(reply, int) else None for reply in replies))


#: How long another partition than the home may take; less than who wants to know has.
OTHER_PARTITIONS_TIMEOUT_S: Final = 1.0
#: What INFO says where nothing bounds the memory of Redis.
_UNBOUNDED = 0


class StallTracker:
    """How long the queue has not moved, as far as this process has seen.

    A gateway does not read the queue. Where no worker lives to tell how old the oldest message is,
    this is the least that it can be.
    """

    def __init__(self) -> None:
        self._delivered: str | None = None
        self._since_s = 0.0
        #: Of the other partitions.
        self._others: dict[int, StallTracker] = {}

    def age_s(self, delivered: str | None, waiting: int | None, now_s: float) -> float | None:
        """Seconds that at least one message has waited; None for unknown."""
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
        """The same of all partitions: as long as of the one that stands still for longest."""
        ages = [
            self._of(each.number).age_s(each.delivered, each.queue.waiting, now_s) for each in seen
        ]
        return max((age for age in ages if age is not None), default=None)

    def _of(self, number: int) -> StallTracker:
        return self if number == HOME_PARTITION else self._others.setdefault(number, StallTracker())


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """One look at Redis; None for what it did not tell."""

    rtt_s: float
    #: How far the clock of Redis is ahead.
    clock_skew_s: float
    queue: QueueReading
    oldest_age_s: float | None
    scheduled: int | None
    dead_letters: int | None
    counts: JobCounts | None
    audits: AuditRecord | None
    workers: list[Heartbeat]
    #: What INFO says; empty where it may not be asked.
    info: dict[str, Any]
    #: Places that workers share; what waits for a place, by task; and the time of Redis.
    limits: list[SharedLimit] = field(default_factory=list)
    waiting: dict[str, WaitingReading] = field(default_factory=dict)
    now_ms: int = 0
    workflows: WorkflowFacts = field(default_factory=WorkflowFacts)
    images: ImageFacts = field(default_factory=ImageFacts)
    #: None while the queue is not paused.
    paused: Pause | None = None
    #: Each partition, the home first.
    partitions: list[PartitionFacts] = field(default_factory=list)

    def age_s(self, since_ms: int) -> float | None:
        """Seconds since then, by the clock of Redis; None for unknown."""
        return max(0.0, (self.now_ms - since_ms) / 1000) if since_ms else None

    @property
    def memory_ratio(self) -> float | None:
        """Memory that Redis uses, of what it may; of several servers, the fullest one's."""
        infos = [self.info, *(each.info for each in self.partitions)]
        ratios = [memory_ratio(info) for info in infos]
        return max((ratio for ratio in ratios if ratio is not None), default=None)

    @property
    def backlog(self) -> int | None:
        """What waits or runs; None for unknown."""
        if self.queue.waiting is None or self.queue.pending is None:
            return None
        return self.queue.waiting + self.queue.pending


async def read_facts(state: GatewayState, standstill: StallTracker) -> RedisFacts:
    """Ask for everything at once; raises what keeps Redis from answering at all."""
    lines, group = state.lines, state.settings.worker_group
    asking = (
        asyncio.ensure_future(read_other_partitions(lines, group, OTHER_PARTITIONS_TIMEOUT_S))
        if len(lines) > 1
        else None
    )
    try:
        return await _read_facts(state, standstill, asking)
    finally:
        if asking is not None:
            asking.cancel()


async def _read_facts(
    state: GatewayState,
    standstill: StallTracker,
    elsewhere: Awaitable[list[PartitionFacts]] | None,
) -> RedisFacts:
    keys = state.settings.keys
    home = PartitionQuery(state.lines.home, state.settings.worker_group)
    started = time.perf_counter()
    asked_s = time.time()
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
    partitions = [home.parse_replies(own), *(() if elsewhere is None else await elsewhere)]
    reading = fill_from_workers(workers, merge_queues(partitions)).with_estimate()
    now_s = time.time()
    now_ms = int(clock[0] * 1000 + clock[1] // 1000)
    waited_s = standstill.longest_s(partitions, now_s)
    return RedisFacts(
        rtt_s=rtt_s,
        clock_skew_s=clock[0] + clock[1] / 1e6 - asked_s - rtt_s / 2,
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
    """What we may not see or Redis does not know, as the worker saw it that was heard of last."""
    if not workers:
        return reading
    theirs = max(workers, key=lambda beat: beat.seen_ms).queue
    seen = {name: value for name, value in asdict(reading).items() if value is not None}
    return replace(theirs, **seen)


def oldest_age_s(reading: QueueReading, waited_s: float | None, now_s: float) -> float | None:
    """How long the oldest message has waited: as a worker saw it, else at least so long."""
    if reading.waiting == 0:
        return 0.0
    if reading.oldest_ms is None:
        return waited_s
    return max(0.0, now_s - reading.oldest_ms / 1000) if reading.oldest_ms else 0.0


def memory_ratio(info: Mapping[str, Any]) -> float | None:
    """Memory that a server uses, of what it may, or else of what its machine has."""
    used = info.get("used_memory")
    most = info.get("maxmemory") or info.get("total_system_memory") or _UNBOUNDED
    if not isinstance(used, int) or not isinstance(most, int) or most <= 0:
        return None
    return used / most

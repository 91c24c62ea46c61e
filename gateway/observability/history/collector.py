"""Collects one sample: counts since the last sample, and current values.

A sample takes two round trips, however many jobs and workers there are. A gateway that starts
sampling continues from the counters of the last sample and the worker baselines stored in Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sluice.common import codec
from sluice.common.contracts.stats import (
    ONE_SECOND,
    TOTAL_FIELDS,
    GatewayField,
    StatsField,
    StatsKeys,
)
from sluice.common.contracts.workers import SECONDS_BOUNDS, TaskHistogram
from sluice.common.jobs.partition_clients import PartitionClients
from sluice.common.jobs.queue_stats import JobCounts
from sluice.common.jobs.store import read_reply
from sluice.common.observability import heartbeats
from sluice.common.observability.heartbeats import Heartbeat, MachineReading
from sluice.common.process.host import HostReadings
from sluice.common.redis.connection import execute_pipeline
from sluice.gateway.observability.history import samples
from sluice.gateway.observability.history.samples import Number, Sample
from sluice.gateway.observability.snapshot.partitions import (
    PartitionFacts,
    PartitionQuery,
    merge_counts,
    merge_queues,
    read_other_partitions,
    total,
)
from sluice.gateway.observability.snapshot.redis import (
    StallTracker,
    fill_from_workers,
    oldest_age_s,
)

#: A worker without baseline that started within this time is new: all its counts are added to the
#: sample. For an older one it is unknown which counts are already in the samples.
NEW_WITHIN_MS: Final = 120_000
#: The baseline of a worker without heartbeat for this long is dropped.
WORKER_FORGET_MS: Final = 3_600_000
_BUCKETS: Final = len(SECONDS_BOUNDS) + 1


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """The counters of one worker since its start, or their increase."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    end_to_end: tuple[int, ...] = (0,) * _BUCKETS
    queue_wait: tuple[int, ...] = (0,) * _BUCKETS

    @classmethod
    def of(cls, beat: Heartbeat) -> WorkerCounters:
        """The counters of a heartbeat."""
        model = beat.model
        return cls(
            0 if model is None else model.prompt_tokens,
            0 if model is None else model.completion_tokens,
            _summed(beat, TaskHistogram.END_TO_END),
            _summed(beat, TaskHistogram.QUEUE_WAIT),
        )

    def since(self, before: WorkerCounters) -> WorkerCounters:
        """The increase since `before`; all counts if a counter was reset."""
        numbers = zip(self._flat, before._flat)
        if any(now < then for now, then in numbers):
            return self
        return WorkerCounters(
            self.prompt_tokens - before.prompt_tokens,
            self.completion_tokens - before.completion_tokens,
            tuple(now - then for now, then in zip(self.end_to_end, before.end_to_end)),
            tuple(now - then for now, then in zip(self.queue_wait, before.queue_wait)),
        )

    @property
    def _flat(self) -> tuple[int, ...]:
        return (self.prompt_tokens, self.completion_tokens, *self.end_to_end, *self.queue_wait)


@dataclass(frozen=True, slots=True)
class _WorkerBaseline:
    """Start time, last heartbeat and counters of a worker at the last sample."""

    started_ms: int
    seen_ms: int
    counters: WorkerCounters


class WorkerBaselines:
    """The counters that are already in the samples, by worker."""

    def __init__(self, known: dict[str, _WorkerBaseline] | None = None) -> None:
        self._known = known or {}

    def diff(
        self, beats: Iterable[Heartbeat], now_ms: int
    ) -> tuple[WorkerBaselines, list[WorkerCounters]]:
        """Returns a new baseline and the increases per worker; does not modify self."""
        known = {
            name: each
            for name, each in self._known.items()
            if now_ms - each.seen_ms < WORKER_FORGET_MS
        }
        increases: list[WorkerCounters] = []
        for beat in beats:
            before = known.get(beat.consumer)
            if before is not None and before.seen_ms == beat.seen_ms:
                continue
            counters = WorkerCounters.of(beat)
            known[beat.consumer] = _WorkerBaseline(beat.started_ms, beat.seen_ms, counters)
            if before is not None and before.started_ms == beat.started_ms:
                increases.append(counters.since(before.counters))
            elif now_ms - beat.started_ms < NEW_WITHIN_MS:
                increases.append(counters)
        return WorkerBaselines(known), increases

    def encode(self) -> str:
        return codec.dumps(
            {
                name: [
                    *(each.started_ms, each.seen_ms),
                    *(each.counters.prompt_tokens, each.counters.completion_tokens),
                    *(_sparse(each.counters.end_to_end), _sparse(each.counters.queue_wait)),
                ]
                for name, each in self._known.items()
            }
        ).decode()

    @classmethod
    def decode(cls, raw: bytes) -> WorkerBaselines:
        """Parse stored baselines; empty if they are invalid."""
        try:
            stored: Any = codec.loads(raw)
            return cls({name: _decode_baseline(each) for name, each in stored.items()})
        except (AttributeError, TypeError, ValueError):
            return cls()


def sum_counters(
    increases: Sequence[WorkerCounters],
) -> tuple[dict[StatsField, int], dict[StatsField, samples.Counts]]:
    """The sum of all increases, as fields of a sample."""
    values = {
        StatsField.PROMPT_TOKENS: sum(each.prompt_tokens for each in increases),
        StatsField.COMPLETION_TOKENS: sum(each.completion_tokens for each in increases),
    }
    spreads: dict[StatsField, samples.Counts] = {
        StatsField.END_TO_END: samples.merge_counts(_counts(each.end_to_end) for each in increases),
        StatsField.QUEUE_WAIT: samples.merge_counts(_counts(each.queue_wait) for each in increases),
    }
    return values, spreads


def _decode_baseline(stored: Any) -> _WorkerBaseline:
    started_ms, seen_ms, prompt, completion, end_to_end, queue_wait = stored
    counters = WorkerCounters(int(prompt), int(completion), _dense(end_to_end), _dense(queue_wait))
    return _WorkerBaseline(int(started_ms), int(seen_ms), counters)


def _summed(beat: Heartbeat, which: TaskHistogram) -> tuple[int, ...]:
    found = (numbers.histogram(which) for numbers in beat.task_numbers.values())
    rows = [each.counts for each in found if each is not None]
    return tuple(map(sum, zip(*rows))) if rows else (0,) * _BUCKETS


def _counts(row: tuple[int, ...]) -> samples.Counts:
    return {bucket: count for bucket, count in enumerate(row) if count}


def _sparse(row: tuple[int, ...]) -> str:
    return samples.encode(_counts(row))


def _dense(raw: str) -> tuple[int, ...]:
    counts = samples.decode(raw)
    return tuple(counts.get(bucket, 0) for bucket in range(_BUCKETS))


#: Timeout for partitions other than the home partition; short, because there is a sample a second.
OTHER_PARTITIONS_TIMEOUT_S: Final = 0.5
#: The counters of a last sample older than this are not used as a baseline.
MOST_GAP_MS: Final = 30_000
#: A gateway without announcement for this long is no longer counted.
GATEWAY_GONE_MS: Final = 15_000
_COUNTS: Final = (StatsField.ACCEPTED, StatsField.DONE, StatsField.ERROR, StatsField.CANCELED)


class Baseline(NamedTuple):
    """The counters that are already in the samples."""

    #: Job counters at the end of the last sample; None if unknown.
    counts: tuple[int, ...] | None = None
    seen: WorkerBaselines = WorkerBaselines()


class Snapshot(NamedTuple):
    """A sample that is not written yet, and the baseline to use once it is."""

    sample: Sample
    baseline: Baseline
    now_ms: int
    #: True if worker counters increased.
    has_worker_changes: bool
    #: Gateways whose announcement is too old.
    stale_gateways: list[str]


class SampleCollector:
    """Reads a sample from Redis. Its only state is a cache of heartbeats and partition counters."""

    def __init__(
        self, lines: PartitionClients, group: str, readings: Callable[[], HostReadings]
    ) -> None:
        self._lines = lines
        self._client = lines.home.client
        self._keys = lines.home.keys
        self._stats = StatsKeys(self._keys.queue)
        self._group = group
        #: Last known job counters of each partition.
        self._counts: dict[int, JobCounts] = {}
        self._readings = readings
        self._stall_tracker = StallTracker()
        self._read: dict[str, tuple[bytes, Heartbeat | None]] = {}

    async def collect(self, before: Baseline) -> Snapshot:
        """Collect the sample of the second that has just ended; raises StoreUnavailable."""
        home = PartitionQuery(self._lines.home, self._group)
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hgetall(self._stats.gateways)
            heartbeats.add_names_query(pipe, self._keys)
            home.add_queries(pipe)
            replies = await read_reply(execute_pipeline(pipe))
        clock, announcements, names, *own = replies
        now_ms = int(clock[0] * 1000 + clock[1] // 1000)
        gateways, stale = _live_gateways(announcements, now_ms)
        workers = await self._workers(heartbeats.parse_worker_names(names))
        partitions = [
            home.parse_replies(own),
            *await read_other_partitions(self._lines, self._group, OTHER_PARTITIONS_TIMEOUT_S),
        ]
        reading = fill_from_workers(workers, merge_queues(partitions)).with_estimate()
        waited_s = self._stall_tracker.longest_s(partitions, now_ms / 1000)
        age_s = oldest_age_s(reading, waited_s, now_ms / 1000)
        known: dict[StatsField, Number | None] = {
            StatsField.DEPTH: reading.waiting,
            StatsField.PENDING: reading.pending,
            StatsField.SCHEDULED: total([each.scheduled for each in partitions]),
            StatsField.DEAD_LETTERS: total([each.dead_letters for each in partitions]),
            StatsField.OLDEST_AGE_MS: None if age_s is None else int(age_s * 1000),
            **_worker_values(workers),
            **self._machine_values(workers),
            **_gateway_values(gateways, workers),
        }
        counts = self._total_counts(partitions)
        seen, increases = before.seen.diff(workers, now_ms)
        added, spreads = sum_counters(increases)
        known |= added
        if counts is not None:
            known |= dict(zip(TOTAL_FIELDS, counts))
            if before.counts is not None:
                known |= dict(zip(_COUNTS, _growth(before.counts, counts)))
        begins_at = now_ms // ONE_SECOND.step_ms * ONE_SECOND.step_ms - ONE_SECOND.step_ms
        values = {each: value for each, value in known.items() if value is not None}
        sample = Sample(begins_at, values, spreads)
        return Snapshot(sample, Baseline(counts, seen), now_ms, bool(increases), stale)

    def _total_counts(self, partitions: Sequence[PartitionFacts]) -> tuple[int, ...] | None:
        """Job counters of all partitions; None if unknown.

        An unreachable partition counts with its last known value. Its increase is added when it
        answers again.
        """
        if len(partitions) > 1:
            known = ((each.number, each.counts) for each in partitions)
            self._counts |= {number: counts for number, counts in known if counts is not None}
            counts = merge_counts([self._counts.get(each.number) for each in partitions])
        else:
            counts = partitions[0].counts
        if counts is None:
            return None
        return counts.accepted, counts.done, counts.error, counts.canceled

    async def _workers(self, names: list[str]) -> list[Heartbeat]:
        """The last heartbeats; one that has not changed is not parsed again."""
        if not names:
            self._read = {}
            return []
        found = await read_reply(self._client.mget([self._keys.worker(name) for name in names]))
        known: dict[str, tuple[bytes, Heartbeat | None]] = {}
        for name, raw in zip(names, found or ()):
            if raw is None:
                continue
            before = self._read.get(name)
            if before is not None and before[0] == raw:
                known[name] = before
            else:
                known[name] = raw, Heartbeat.from_json(raw, name)
        self._read = known
        return [beat for _, beat in known.values() if beat is not None]

    def _machine_values(self, workers: Sequence[Heartbeat]) -> dict[StatsField, Number | None]:
        """The worst value of all machines with a worker, and of this one."""
        hosts: list[HostReadings | MachineReading] = [
            self._readings(),
            *(beat.box for beat in workers),
        ]
        free = [host.available_bytes for host in hosts if host.available_bytes is not None]
        heat = [host.temperature_c for host in hosts if host.temperature_c is not None]
        busy = [host.gpu_load for host in hosts if host.gpu_load is not None]
        return {
            StatsField.AVAILABLE_BYTES: min(free, default=None),
            StatsField.TEMPERATURE_C: round(max(heat), 1) if heat else None,
            StatsField.GPU_LOAD: round(max(busy), 3) if busy else None,
        }


def restore_baseline(last: Sample | None, seen: bytes, now_ms: int) -> Baseline:
    """The baseline of the last sample, for a gateway that starts sampling."""
    counts: tuple[int, ...] | None = None
    if last is not None and 0 <= now_ms - last.ts < MOST_GAP_MS:
        found = [last.values.get(each) for each in TOTAL_FIELDS]
        if all(isinstance(each, int) for each in found):
            counts = tuple(int(each or 0) for each in found)
    return Baseline(counts, WorkerBaselines.decode(seen))


def _growth(before: Sequence[int], now: Sequence[int]) -> list[int]:
    """Increase of each counter; a counter that became smaller was reset to 0."""
    return [new - old if new >= old else new for old, new in zip(before, now)]


def _worker_values(workers: Sequence[Heartbeat]) -> dict[StatsField, Number | None]:
    return {
        StatsField.WORKERS: len(workers),
        StatsField.RUNNING: sum(beat.in_flight for beat in workers),
        StatsField.SLOTS: sum(beat.max_inflight for beat in workers),
        StatsField.WORKERS_RSS_BYTES: sum(beat.rss_bytes for beat in workers),
    }


def _live_gateways(announcements: Any, now_ms: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The announcements of live gateways, and the names of stale ones."""
    live: list[dict[str, Any]] = []
    stale: list[str] = []
    for name, raw in announcements.items() if isinstance(announcements, dict) else ():
        announcement = codec.parse_payload(raw)
        seen_ms = announcement.get(GatewayField.SEEN_MS)
        if isinstance(seen_ms, int) and abs(now_ms - seen_ms) < GATEWAY_GONE_MS:
            live.append(announcement)
        else:
            stale.append(codec.decode_text(name))
    return live, stale


def _gateway_values(
    gateways: Sequence[dict[str, Any]], workers: Sequence[Heartbeat]
) -> dict[StatsField, Number | None]:
    lags = [_reported_int(gateway, GatewayField.LOOP_LAG_MS) for gateway in gateways]
    lags += [int(beat.loop_lag_s * 1000) for beat in workers]
    return {
        StatsField.GATEWAYS: len(gateways),
        StatsField.SSE_CLIENTS: sum(
            _reported_int(gateway, GatewayField.SSE_CLIENTS) for gateway in gateways
        ),
        StatsField.LOOP_LAG_MS: max(lags, default=None),
    }


def _reported_int(announcement: dict[str, Any], member: str) -> int:
    value = announcement.get(member)
    return value if isinstance(value, int) else 0

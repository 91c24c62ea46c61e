"""Takes one sample: what has happened since the last one, and how everything stands.

Two round trips, however much there is. Where a keeper has just begun, it goes on from what is in
Redis: the counters of the last sample, and what was seen of each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from common import codec, heartbeats
from common.contracts.stats import SECONDS, TOTALS, GatewayField, StatsField, StatsKeys
from common.counts import JobCounts
from common.heartbeats import Box, Heartbeat
from common.host import Readings
from common.partition_lines import Lines
from common.pipelines import replies_of
from common.store import read
from gateway.metrics_redis import Standstill, oldest_age_s, with_help_of
from gateway.partition_facts import (
    PartitionFacts,
    PartitionQuestion,
    joined_counts,
    joined_queue,
    others,
    total,
)
from gateway.stats import seen as seen_workers
from gateway.stats.sample import Number, Sample
from gateway.stats.seen import Seen

#: How long another partition than the home may take; there is a sample a second.
OTHERS_S: Final = 0.5
#: Counters of a last sample that is older say nothing of the second that is measured now.
MOST_GAP_MS: Final = 30_000
#: A gateway that was silent for so long is gone.
GATEWAY_GONE_MS: Final = 15_000
_COUNTS: Final = (StatsField.ACCEPTED, StatsField.DONE, StatsField.ERROR, StatsField.CANCELED)


class Baseline(NamedTuple):
    """What is in the samples already."""

    #: The counters at the end of the last sample; None where they are not known.
    counts: tuple[int, ...] | None = None
    seen: Seen = Seen()


class Taken(NamedTuple):
    """A sample that is not written yet, and the baseline once it is."""

    sample: Sample
    baseline: Baseline
    now_ms: int
    #: Whether there is something new of workers.
    news: bool
    #: Gateways that have fallen silent.
    gone: list[str]


class Collector:
    """Asks Redis; has no memory but of heartbeats that it has read already."""

    def __init__(self, lines: Lines, group: str, readings: Callable[[], Readings]) -> None:
        self._lines = lines
        self._client = lines.home.client
        self._keys = lines.home.keys
        self._stats = StatsKeys(self._keys.queue)
        self._group = group
        #: What was counted in each partition, as it last said.
        self._counts: dict[int, JobCounts] = {}
        self._readings = readings
        self._standstill = Standstill()
        self._read: dict[str, tuple[bytes, Heartbeat | None]] = {}

    async def collect(self, before: Baseline) -> Taken:
        """One sample of the second that has just ended; raises StoreUnavailable."""
        home = PartitionQuestion(self._lines.home, self._group)
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hgetall(self._stats.gateways)
            heartbeats.ask_names(pipe, self._keys)
            home.ask(pipe)
            replies = await read(replies_of(pipe))
        clock, told, names, *own = replies
        now_ms = int(clock[0] * 1000 + clock[1] // 1000)
        gateways, gone = _alive(told, now_ms)
        workers = await self._workers(heartbeats.names_in(names))
        partitions = [home.answer(own), *await others(self._lines, self._group, OTHERS_S)]
        reading = with_help_of(workers, joined_queue(partitions)).estimated()
        waited_s = self._standstill.longest_s(partitions, now_ms / 1000)
        age_s = oldest_age_s(reading, waited_s, now_ms / 1000)
        known: dict[StatsField, Number | None] = {
            StatsField.DEPTH: reading.waiting,
            StatsField.PENDING: reading.pending,
            StatsField.SCHEDULED: total([each.scheduled for each in partitions]),
            StatsField.DEAD_LETTERS: total([each.dead_letters for each in partitions]),
            StatsField.OLDEST_AGE_MS: None if age_s is None else int(age_s * 1000),
            **_of_workers(workers),
            **self._of_boxes(workers),
            **_of_gateways(gateways, workers),
        }
        counts = self._counted(partitions)
        seen, news = before.seen.with_news_of(workers, now_ms)
        added, spreads = seen_workers.total(news)
        known |= added
        if counts is not None:
            known |= dict(zip(TOTALS, counts))
            if before.counts is not None:
                known |= dict(zip(_COUNTS, _growth(before.counts, counts)))
        begins_at = now_ms // SECONDS.step_ms * SECONDS.step_ms - SECONDS.step_ms
        values = {each: value for each, value in known.items() if value is not None}
        sample = Sample(begins_at, values, spreads)
        return Taken(sample, Baseline(counts, seen), now_ms, bool(news), gone)

    def _counted(self, partitions: Sequence[PartitionFacts]) -> tuple[int, ...] | None:
        """All that was ever counted; a partition that is away is taken as it last was, and what it
        has added meanwhile is added when it is back."""
        if len(partitions) > 1:
            known = ((each.number, each.counts) for each in partitions)
            self._counts |= {number: counts for number, counts in known if counts is not None}
            counts = joined_counts([self._counts.get(each.number) for each in partitions])
        else:
            counts = partitions[0].counts
        if counts is None:
            return None
        return counts.accepted, counts.done, counts.error, counts.canceled

    async def _workers(self, names: list[str]) -> list[Heartbeat]:
        """What workers said last; who has said nothing new is not read again."""
        if not names:
            self._read = {}
            return []
        found = await read(self._client.mget([self._keys.worker(name) for name in names]))
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

    def _of_boxes(self, workers: Sequence[Heartbeat]) -> dict[StatsField, Number | None]:
        """The worst of every machine that somebody tells of."""
        boxes: list[Readings | Box] = [self._readings(), *(beat.box for beat in workers)]
        free = [box.available_bytes for box in boxes if box.available_bytes is not None]
        heat = [box.temperature_c for box in boxes if box.temperature_c is not None]
        busy = [box.gpu_load for box in boxes if box.gpu_load is not None]
        return {
            StatsField.AVAILABLE_BYTES: min(free, default=None),
            StatsField.TEMPERATURE_C: round(max(heat), 1) if heat else None,
            StatsField.GPU_LOAD: round(max(busy), 3) if busy else None,
        }


def baseline_of(last: Sample | None, seen: bytes, now_ms: int) -> Baseline:
    """Where the last keeper has stopped."""
    counts: tuple[int, ...] | None = None
    if last is not None and 0 <= now_ms - last.ts < MOST_GAP_MS:
        found = [last.values.get(each) for each in TOTALS]
        if all(isinstance(each, int) for each in found):
            counts = tuple(int(each or 0) for each in found)
    return Baseline(counts, Seen.decode(seen))


def _growth(before: Sequence[int], now: Sequence[int]) -> list[int]:
    """A counter below where it was has begun again."""
    return [new - old if new >= old else new for old, new in zip(before, now)]


def _of_workers(workers: Sequence[Heartbeat]) -> dict[StatsField, Number | None]:
    return {
        StatsField.WORKERS: len(workers),
        StatsField.RUNNING: sum(beat.in_flight for beat in workers),
        StatsField.SLOTS: sum(beat.max_inflight for beat in workers),
        StatsField.WORKERS_RSS_BYTES: sum(beat.rss_bytes for beat in workers),
    }


def _alive(told: Any, now_ms: int) -> tuple[list[dict[str, Any]], list[str]]:
    """What gateways say that live, and the names of those that do not."""
    alive: list[dict[str, Any]] = []
    gone: list[str] = []
    for name, raw in told.items() if isinstance(told, dict) else ():
        said = codec.payload_object(raw)
        seen_ms = said.get(GatewayField.SEEN_MS.value)
        if isinstance(seen_ms, int) and abs(now_ms - seen_ms) < GATEWAY_GONE_MS:
            alive.append(said)
        else:
            gone.append(codec.text(name))
    return alive, gone


def _of_gateways(
    gateways: Sequence[dict[str, Any]], workers: Sequence[Heartbeat]
) -> dict[StatsField, Number | None]:
    lags = [_said(said, GatewayField.LOOP_LAG_MS) for said in gateways]
    lags += [int(beat.loop_lag_s * 1000) for beat in workers]
    return {
        StatsField.GATEWAYS: len(gateways),
        StatsField.SSE_CLIENTS: sum(_said(said, GatewayField.SSE_CLIENTS) for said in gateways),
        StatsField.LOOP_LAG_MS: max(lags, default=None),
    }


def _said(said: dict[str, Any], member: GatewayField) -> int:
    value = said.get(member.value)
    return value if isinstance(value, int) else 0

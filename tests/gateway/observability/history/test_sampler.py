"""The sampler: one gateway at a time, without gaps, duplicates or losses."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from fakeredis.commands_mixins import server_mixin

from sluice.common.aio import cancel
from sluice.common.contracts.stats import FIVE_MINUTES, ONE_SECOND, TEN_SECONDS, StatsField
from sluice.common.observability.heartbeats import MachineReading
from sluice.gateway.observability.history import sampler as sampler_module
from sluice.gateway.observability.history.collector import MOST_GAP_MS
from sluice.gateway.observability.history.sampler import HistorySampler
from sluice.gateway.observability.history.samples import Sample
from tests.support.gateway.faults import fail_first
from tests.support.gateway.history import (
    KEYS,
    START,
    STATS,
    History,
    beat,
    sample,
    task_histograms,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only


class Clock:
    """The clock of fakeredis, which tests advance instead of waiting for the next second."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def time(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(server_mixin, "time", clock)
    return clock


async def next_sample(sampler: HistorySampler) -> Sample:
    """The sample of the next second."""
    clock: Any = server_mixin.time
    clock.ahead_s += 1.0
    found = await sampler.run_once()
    assert found is not None
    return found


async def test_sample_has_counts_since_the_last_one(history: History) -> None:
    sampler = history.sampler()
    await history.add_counts(accepted=100, done=90)
    first = await next_sample(sampler)
    assert StatsField.DONE not in first.values, "the baseline is unknown"
    assert first.values[StatsField.DONE_TOTAL] == 90
    await history.add_counts(accepted=3, done=2, error=1)
    await history.add_counts(canceled=4)
    second = await next_sample(sampler)
    counts = (StatsField.ACCEPTED, StatsField.DONE, StatsField.ERROR, StatsField.CANCELED)
    assert [second.values[each] for each in counts] == [3, 2, 1, 4]
    assert [each.encode() for each in await history.stored()] == [first.encode(), second.encode()]
    assert second.ts % 1000 == 0
    assert second.ts < await history.now_ms()


async def test_sample_has_current_values(history: History) -> None:
    now_ms = await history.now_ms()
    fields = {"job_id": "a", "task": "chat", "payload": "{}"}
    await history.redis.xadd(KEYS.queue, fields, f"{now_ms - 9000}-0")
    await history.redis.zadd(KEYS.scheduled, {"b": now_ms + 10**6, "c": now_ms + 10**6})
    await history.redis.xadd(KEYS.dead_letters, {"reason": "x"})
    load = {"in_flight": 3, "max_inflight": 4, "rss_bytes": 1000, "loop_lag_s": 0.002}
    tokens = {"state": "ready", "prompt_tokens": 10, "completion_tokens": 4}
    first = beat(
        **load,
        seen_ms=now_ms,
        started_ms=now_ms - 100,
        queue={"waiting": 1, "pending": 0, "oldest_ms": now_ms - 9000},
        box=MachineReading(available_bytes=5, temperature_c=50.25, gpu_load=0.5),
        tally=task_histograms(0, 2, waits=(1,)),
        model=tokens,
    )
    load = {"in_flight": 1, "max_inflight": 2, "rss_bytes": 500, "seen_ms": now_ms - 1}
    second = beat("w2", **load, box=MachineReading(available_bytes=9, temperature_c=61.0))
    await history.store_heartbeat(first)
    await history.store_heartbeat(second)
    history.sse_clients = 5
    sampler, standing_by = history.sampler(), history.sampler()
    await sampler.run_once()
    await standing_by.run_once()
    found = await next_sample(sampler)
    values = {field.value: number for field, number in found.values.items()}
    zeros = ("accepted", "done", "error", "canceled", "pending", "prompt_tokens")
    oldest = pytest.approx(found.ts + 1500 - now_ms + 9000, abs=600)
    jobs = {"depth": 1, "scheduled": 2, "dead_letters": 1, "oldest_age_ms": oldest}
    workers = {"workers": 2, "running": 4, "slots": 6, "workers_rss_bytes": 1500}
    gateways = {"gateways": 2, "sse_clients": 10, "loop_lag_ms": 4}
    machines = {"available_bytes": 5, "temperature_c": 61.0, "gpu_load": 0.5}
    assert {name: values[name] for name in values if not name.endswith("_total")} == {
        **dict.fromkeys((*zeros, "completion_tokens"), 0),
        **(jobs | workers | gateways | machines),
    }
    begun = (await history.stored())[0]
    assert begun.spreads[StatsField.END_TO_END] == {1: 2}
    assert begun.values[StatsField.PROMPT_TOKENS] == 10


async def test_next_sampler_continues_after_the_last_sample(history: History) -> None:
    now_ms = await history.now_ms()
    first, second = history.sampler(), history.sampler()
    began = now_ms - 10**7
    await history.add_counts(done=10)
    await history.store_heartbeat(beat(started_ms=began, seen_ms=now_ms, tally=task_histograms(5)))
    await first.run_once()
    await next_sample(first)
    assert await second.run_once() is None, "the lease is held"
    await history.add_counts(done=7)
    await history.store_heartbeat(
        beat(started_ms=began, seen_ms=now_ms + 1, tally=task_histograms(9))
    )
    await history.redis.delete(STATS.sampler_lock)  # it died, and its lease expired
    found = await next_sample(second)
    assert found.values[StatsField.DONE] == 7
    assert found.spreads[StatsField.END_TO_END] == {0: 4}
    assert await first.run_once() is None
    assert not first.holds_lease


async def test_stopping_sampler_releases_the_lease(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "RELEASE_TIMEOUT_S", 20.0)
    first, second = history.sampler(), history.sampler()
    await first.run_once()
    await first.release()
    assert await history.redis.exists(STATS.sampler_lock) == 0
    assert await history.redis.hlen(STATS.gateways) == 0
    await second.release()
    await second.run_once()
    assert second.holds_lease
    await first.release()
    assert await history.redis.exists(STATS.sampler_lock) == 1, "held by another gateway"


async def test_two_lease_holders_write_each_second_once(history: History, clock: Clock) -> None:
    first, second = history.sampler(), history.sampler()
    second.lease = first.lease  # as after a pause in which the lease was lost and taken again
    second.holds_lease = True
    await history.add_counts(done=1)
    for _ in range(3):
        clock.ahead_s += 1.0
        await asyncio.gather(first.run_once(), second.run_once())
    times = [each.ts for each in await history.stored()]
    assert (len(times), len(set(times))) == (3, 3)


async def test_lost_reply_neither_loses_nor_repeats_counts(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = history.sampler()
    await next_sample(sampler)
    append = sampler._rings.append

    async def lose_reply(*args: Any, **options: Any) -> None:
        await append(*args, **options)
        raise ConnectionError("the reply was lost")

    await history.add_counts(done=5)
    with monkeypatch.context() as patched:
        patched.setattr(sampler._rings, "append", lose_reply)
        with pytest.raises(ConnectionError):
            await next_sample(sampler)
    await history.add_counts(done=2)
    await next_sample(sampler)
    done = [each.values.get(StatsField.DONE) for each in await history.stored()]
    assert done == [None, 5, 2]


async def test_counts_after_a_reset_or_a_gap(history: History) -> None:
    sampler = history.sampler()
    await history.add_counts(done=50)
    await next_sample(sampler)
    await history.redis.delete(KEYS.counts)
    await history.add_counts(done=3)
    assert (await next_sample(sampler)).values[StatsField.DONE] == 3, "from zero"
    await history.redis.flushall()
    now_ms = await history.now_ms()
    await history.put([sample(now_ms // 1000 * 1000 - MOST_GAP_MS, done_total=0)])
    await history.add_counts(done=1000)
    found = await next_sample(history.sampler())
    assert StatsField.DONE not in found.values, "unknown after a time without samples"


async def test_longer_samples_are_merged_at_boundaries(history: History) -> None:
    fine = [sample(START + n * 5000, {1: 5}, done=10, depth=n % 7) for n in range(124)]
    await history.put(fine)
    sampler = history.sampler()
    sampler.holds_lease = await history.rings.acquire(sampler.lease)
    await sampler.roll_up(START + 612_000)
    tens = await history.stored(TEN_SECONDS)
    assert [each.ts for each in tens] == [START + n * 10_000 for n in range(61)]
    assert all(each.values[StatsField.DONE] == 20 for each in tens)
    assert all(each.spreads[StatsField.END_TO_END] == {1: 10} for each in tens)
    fives = await history.stored(FIVE_MINUTES)
    assert [each.ts for each in fives] == [START, START + 300_000]
    assert [each.values[StatsField.DONE] for each in fives] == [600, 600]
    assert fives[0].values[StatsField.DEPTH] == 6
    # First no boundary is passed, then one; another sampler finds nothing left to merge.
    await sampler.roll_up(START + 619_000)
    assert len(await history.stored(TEN_SECONDS)) == 61
    await sampler.roll_up(START + 620_000)
    assert len(await history.stored(TEN_SECONDS)) == 62
    for rolled_ms, now_ms in ((0, 621_000), (START + 608_000, 633_000)):
        sampler._rolled_ms = rolled_ms
        await history.put(
            [sample(START + 600_000 + n * 1000) for n in range(20, 33)] if rolled_ms else []
        )
        await sampler.roll_up(START + now_ms)
    assert len(await history.stored(TEN_SECONDS)) == 63, "a missed boundary is merged later"


async def test_sampling_continues_after_the_clock_went_back(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "FUTURE_KEPT_S", 0.0)
    now_ms = await history.now_ms()
    old = sample(now_ms // 1000 * 1000 - 60_000, done=1)
    future = sample(now_ms // 1000 * 1000 + 10**9, done=9)
    await history.put([old, future])
    await history.put([future], TEN_SECONDS)
    found = await next_sample(history.sampler())
    assert [each.ts for each in await history.stored()] == [old.ts, found.ts]
    assert [each.ts for each in await history.stored(TEN_SECONDS)][-1:] != [future.ts]


async def test_clock_behind_for_a_while_deletes_no_history(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a real-time clock, until it has synchronised its time."""
    now_ms = await history.now_ms() // 1000 * 1000
    before = [sample(now_ms + 10**9 + n * 1000, done=1) for n in range(3)]
    await history.put(before)
    await history.put(before, TEN_SECONDS)
    sampler = history.sampler()
    for _ in range(3):
        assert await sampler.run_once() is None
    for ring in (ONE_SECOND, TEN_SECONDS):
        assert [each.ts for each in await history.stored(ring)] == [b.ts for b in before]
    assert await history.redis.exists(STATS.sampler_lock), "it keeps its lease"
    monkeypatch.setattr(sampler_module, "FUTURE_KEPT_S", 0.0)
    assert await sampler.run_once() is None, "it deletes them"
    found = await next_sample(sampler)
    assert [each.ts for each in await history.stored()] == [found.ts], "it stays behind"
    assert all(each.ts <= found.ts for each in await history.stored(TEN_SECONDS))


async def test_stale_gateways_and_invalid_values_are_tolerated(history: History) -> None:
    entries = {"gone": '{"seen_ms":5,"sse_clients":9}', "odd": "x", "many": "[1]"}
    await history.redis.hset(STATS.gateways, mapping=entries)
    found = await next_sample(history.sampler())
    assert (found.values[StatsField.GATEWAYS], found.values[StatsField.SSE_CLIENTS]) == (1, 0)
    assert await history.redis.hlen(STATS.gateways) == 1, "stale gateways are removed"
    await history.redis.flushall()
    for key in (KEYS.counts, KEYS.scheduled, KEYS.dead_letters, KEYS.workers, STATS.gateways):
        await history.redis.set(key, "text")
    await history.redis.set(KEYS.queue, "text")
    await history.redis.hset(STATS.seen, "text", "1")
    found = await next_sample(history.sampler())
    assert StatsField.DEPTH not in found.values
    assert StatsField.DONE_TOTAL not in found.values
    assert found.values[StatsField.WORKERS] == 0


async def test_sampling_continues_after_errors(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = history.sampler()
    errors = [ConnectionError("away"), RuntimeError("a mistake")]
    left = fail_first(monkeypatch, sampler._collector, "collect", *errors)
    monkeypatch.setattr(sampler, "_until_next_s", lambda: 0.01)
    running = asyncio.create_task(sampler.run())
    try:
        await eventually(history.stored, 30)
    finally:
        await cancel(running)
    assert left == []

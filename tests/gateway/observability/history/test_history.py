"""Samples of the history: encoding, ring buffers in Redis, and the reader."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from typing import Any

import pytest

from sluice.common.contracts.stats import (
    COUNT_FIELDS,
    HISTOGRAM_FIELDS,
    ONE_SECOND,
    TEN_SECONDS,
    TOTAL_FIELDS,
    Resolution,
    StatsColumn,
    StatsField,
)
from sluice.common.contracts.workers import SECONDS_BOUNDS
from sluice.common.errors import CorruptKey
from sluice.gateway.observability.history import reader as module
from sluice.gateway.observability.history import samples
from sluice.gateway.observability.history.collector import (
    NEW_WITHIN_MS,
    WORKER_FORGET_MS,
    WorkerBaselines,
    WorkerCounters,
    sum_counters,
)
from sluice.gateway.observability.history.reader import HistoryReader
from sluice.gateway.observability.history.rings import SamplerLease, WriteOutcome
from sluice.gateway.observability.history.samples import (
    COLUMNS,
    Number,
    Point,
    Sample,
    columns,
    make_point,
    merge_samples,
)
from tests.support.gateway.faults import record_calls
from tests.support.gateway.history import (
    LEASE,
    START,
    STATS,
    History,
    beat,
    sample,
    task_histograms,
)


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 10)


def value(one: Point, column: StatsColumn) -> Number | None:
    return one.values[COLUMNS.index(column.value)]


def test_a_point_covers_ten_seconds() -> None:
    seconds = [
        sample(START + n * 1000, {4: 10} if n == 0 else {}, prompt_tokens=100 if n == 0 else 0)
        for n in range(11)
    ]
    tenth, eleventh = make_point(seconds[:10], ONE_SECOND), make_point(seconds[1:], ONE_SECOND)
    assert value(tenth, StatsColumn.E2E_P50_MS) == 17.5
    assert value(tenth, StatsColumn.PROMPT_TOKENS_PER_S) == 10
    assert value(eleventh, StatsColumn.E2E_P50_MS) is None
    assert value(eleventh, StatsColumn.PROMPT_TOKENS_PER_S) == 0
    after_a_gap = make_point([seconds[0], sample(START + 60_000)], ONE_SECOND)
    assert value(after_a_gap, StatsColumn.E2E_P50_MS) is None
    longer = make_point([sample(START, {4: 10}, done=30, prompt_tokens=100)], TEN_SECONDS)
    assert value(longer, StatsColumn.DONE) == 30
    assert value(longer, StatsColumn.PROMPT_TOKENS_PER_S) == 10
    assert value(longer, StatsColumn.QUEUE_WAIT_P99_MS) is None
    assert (longer.view()["ts"], len(longer.values)) == (START, len(COLUMNS))


async def test_samples_are_read_once(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    await history.put([sample(START + n * 1000, done=n) for n in range(60)])
    known = HistoryReader(history.rings)
    found = await known.points(ONE_SECOND)
    assert [each.ts for each in found] == [START + n * 1000 for n in range(60)]
    assert await known.points(ONE_SECOND, START + 59_000) == []
    reads = record_calls(monkeypatch, history.rings, "after")
    await history.put([sample(START + 60_000, done=7), sample(START + 61_000)])
    news = await known.points(ONE_SECOND, START + 59_000)
    assert [each.ts for each in news] == [START + 60_000, START + 61_000]
    [(_, last_known_ms, *_)] = reads
    assert last_known_ms == START + 58_999, "the last known sample and the new ones"
    assert known.newest is not None
    assert known.newest.ts == START + 61_000


async def test_paging_reads_every_sample(history: History) -> None:
    for number in (module.PAGE - 1, module.PAGE, module.PAGE + 1, 2 * module.PAGE):
        await history.redis.delete(STATS.ring(ONE_SECOND))
        await history.put([sample(START + n * 1000) for n in range(number)])
        assert len(await HistoryReader(history.rings).points(ONE_SECOND)) == number


async def test_replaced_ring_is_read_again(history: History) -> None:
    await history.put([sample(START + n * 1000) for n in range(5)])
    known = HistoryReader(history.rings)
    await known.points(ONE_SECOND)
    await history.redis.delete(STATS.ring(ONE_SECOND))
    assert await known.points(ONE_SECOND) == []
    assert known.newest is None
    await history.put([sample(START - 1000, done=1)])
    for number in range(1, 3 * module.PAGE):  # only third-party writers add several at one time
        await history.redis.xadd(STATS.ring(ONE_SECOND), {"done": "9"}, f"{START - 1000}-{number}")
    for _ in range(3):
        assert [each.ts for each in await known.points(ONE_SECOND)] == [START - 1000]


def test_columns_have_a_row_for_each_step() -> None:
    points = [make_point([sample(START + n * 1000, done=n)], ONE_SECOND) for n in (0, 1, 4)]
    found = columns(points, 1000, ["done", "depth"])
    assert found == {
        "ts": [START + n * 1000 for n in range(5)],
        "done": [0, 1, None, None, 4],
        "depth": [None] * 5,
    }
    assert columns([], 1000, ["done"]) == {"ts": [], "done": []}


OTHER = SamplerLease("other", 60_000)


async def test_only_one_gateway_holds_the_lease(history: History) -> None:
    rings = history.rings
    assert await rings.acquire(LEASE)
    assert not await rings.acquire(OTHER)
    assert await rings.append(ONE_SECOND, sample(START, done=1), OTHER) is WriteOutcome.LOST
    assert await history.stored() == []
    await rings.release(OTHER)
    assert not await rings.acquire(OTHER), "only the holder can release the lease"
    await rings.release(LEASE)
    assert await rings.acquire(OTHER)


async def test_each_sample_is_written_once(history: History) -> None:
    rings = history.rings
    await rings.acquire(LEASE._replace(ttl_ms=100))
    assert await rings.append(ONE_SECOND, sample(START, done=1), LEASE, "seen") is WriteOutcome.OK
    assert await history.redis.pttl(STATS.sampler_lock) > 50_000, "a sample renews the lease"
    again = await rings.append(ONE_SECOND, sample(START, done=2), LEASE, "more")
    before = await rings.append(ONE_SECOND, sample(START - 1000, done=2), LEASE, "more")
    assert (again, before) == (WriteOutcome.TAKEN, WriteOutcome.TAKEN)
    [only] = await history.stored()
    assert only.encode() == sample(START, done=1).encode()
    assert await rings.seen() == b"seen", "baselines are stored only with a written sample"
    short = Resolution("1s", 1000, 5)
    for second in range(1, 8):
        await rings.append(short, sample(START + second * 1000), LEASE)
    assert [each.ts for each in await history.stored()] == [
        START + second * 1000 for second in range(3, 8)
    ]


async def test_samples_in_the_future_are_deleted(history: History) -> None:
    kept = [sample(START + n * 1000, {2: n}, depth=n) for n in range(4)]
    await history.put([*kept, sample(START + 10**9, depth=9)])
    await history.rings.rewind(ONE_SECOND, OTHER, START + 60_000)
    assert len(await history.stored()) == 5, "not without the lease"
    await history.rings.acquire(LEASE)
    await history.rings.rewind(ONE_SECOND, LEASE, START + 60_000)
    assert [each.encode() for each in await history.stored()] == [each.encode() for each in kept]
    assert await history.rings.append(ONE_SECOND, sample(START + 4000), LEASE) is WriteOutcome.OK


async def test_samples_are_read_after_a_time(history: History) -> None:
    await history.put([sample(START + n * 1000) for n in range(5)], TEN_SECONDS)
    after = history.rings.after
    for found, seconds in (
        (await after(TEN_SECONDS, START + 2000), [3, 4]),
        (await after(TEN_SECONDS, 0, START + 1000), [0, 1]),
        (await after(TEN_SECONDS, 0, count=2), [0, 1]),
    ):
        assert [each.ts for each in found] == [START + n * 1000 for n in seconds]
    newest = await history.rings.newest(TEN_SECONDS)
    assert newest is not None
    assert newest.ts == START + 4000
    assert await history.rings.newest(ONE_SECOND) is None


async def test_key_of_another_type_is_not_changed(history: History) -> None:
    await history.redis.set(STATS.ring(ONE_SECOND), "text")
    await history.rings.acquire(LEASE)
    with pytest.raises(CorruptKey):
        await history.rings.append(ONE_SECOND, sample(START), LEASE)
    assert await history.stored() == []
    assert await history.redis.get(STATS.ring(ONE_SECOND)) == b"text"


def entry(one: Sample) -> dict[bytes, bytes]:
    flat = [text.encode() for text in one.encode()]
    return dict(zip(flat[::2], flat[1::2]))


def test_encoded_sample_can_be_decoded() -> None:
    whole = sample(START, {3: 4}, depth=5, temperature_c=61.5, gpu_load=0.25, done=0)
    fields = entry(whole)
    names = [field.value.encode() for field in StatsField]
    assert list(fields) == names, "every entry has the same fields"
    found = Sample.decode(f"{START}-0".encode(), fields)
    assert found.ts == START
    assert found.values == whole.values
    assert StatsField.ERROR not in found.values, "unknown is not zero"
    assert found.spreads == {StatsField.END_TO_END: {3: 4}}
    for raw in (b"x", b"nan", b"inf", b"\xff", b"1e999"):
        found = Sample.decode(b"5-0", {b"depth": raw, b"done": b"2", b"unknown": b"3"})
        assert found == Sample(5, {StatsField.DONE: 2}, {}), raw


def test_merged_sample_has_sums_worst_values_and_totals() -> None:
    first = sample(START, {1: 2}, done=2, depth=9, done_total=10, available_bytes=100)
    second = sample(START + 1000, {1: 1, 2: 5}, done=3, depth=1, done_total=13, available_bytes=70)
    third = sample(START + 2000, depth=4)
    whole = merge_samples(START, [first, second, third])
    assert whole.ts == START
    assert whole.values == {
        StatsField.DONE: 5,
        StatsField.DEPTH: 9,
        StatsField.DONE_TOTAL: 13,
        StatsField.AVAILABLE_BYTES: 70,
    }
    assert whole.spreads[StatsField.END_TO_END] == {1: 3, 2: 5}
    plain = [field for field in StatsField if field not in HISTOGRAM_FIELDS]
    whole = merge_samples(START, [Sample(START, dict.fromkeys(plain, 1), {})])
    assert set(whole.values) == set(plain), "every field is merged"
    assert not set(COUNT_FIELDS) & set(TOTAL_FIELDS)


def counts_of(values: list[float]) -> dict[int, int]:
    return dict(Counter(bisect_left(SECONDS_BOUNDS, value) for value in values))


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_percentile_is_in_the_right_bucket(share: float) -> None:
    assert samples.percentile_ms({}, share) is None
    assert samples.percentile_ms({3: 0}, share) is None
    assert samples.percentile_ms({samples.LAST_BUCKET: 5}, share) == SECONDS_BOUNDS[-1] * 1000
    rng = random.Random(7)
    for _ in range(50):
        values = sorted(rng.lognormvariate(-1, 2) for _ in range(rng.randrange(1, 400)))
        found = samples.percentile_ms(counts_of(values), share)
        assert found is not None
        rank = max(0, -(-int(share * 1000) * len(values) // 1000) - 1)
        bucket = bisect_left(SECONDS_BOUNDS, values[rank])
        low = SECONDS_BOUNDS[bucket - 1] if bucket else 0.0
        high = SECONDS_BOUNDS[min(bucket, samples.LAST_BUCKET - 1)]
        assert low * 1000 - 0.001 <= found <= high * 1000 + 0.001


def test_histograms_are_encoded_and_merged() -> None:
    counts = {0: 3, 7: 12, samples.LAST_BUCKET: 1}
    assert samples.encode({**counts, 4: 0}) == f"0:3,7:12,{samples.LAST_BUCKET}:1"
    assert samples.decode(samples.encode(counts)) == counts
    assert samples.decode("") == {}
    for raw in ("x", "1", "1:", ":1", "1:-2", "99:1", "1:1.5", "1:" + "9" * 99):
        assert samples.decode(f"2:4,{raw},5:1") == {2: 4, 5: 1}, raw
    rng = random.Random(3)
    parts = [[rng.expovariate(2) for _ in range(rng.randrange(30))] for _ in range(20)]
    whole = counts_of([value for part in parts for value in part])
    assert samples.merge_counts(counts_of(part) for part in parts) == whole


OLD = START - NEW_WITHIN_MS


def test_only_increases_count() -> None:
    first = beat(started_ms=OLD, seen_ms=START, tally=task_histograms(5, 1, waits=(2,)))
    then = beat(started_ms=OLD, seen_ms=START + 5000, tally=task_histograms(5, 4, waits=(3,)))
    seen, increases = WorkerBaselines().diff([first], START)
    assert increases == [], "it is unknown which counts are already in the samples"
    seen, increases = seen.diff([then], START + 5000)
    _, spreads = sum_counters(increases)
    assert spreads == {StatsField.END_TO_END: {1: 3}, StatsField.QUEUE_WAIT: {0: 1}}
    _, increases = seen.diff([then], START + 6000)
    assert increases == [], "no new heartbeat"


def test_all_counts_of_a_new_worker_are_added() -> None:
    new_worker = beat(started_ms=START - 1000, seen_ms=START, tally=task_histograms(2))
    seen, increases = WorkerBaselines().diff([new_worker], START)
    assert sum_counters(increases)[1][StatsField.END_TO_END] == {0: 2}
    again = beat(started_ms=START + 500, seen_ms=START + 1000, tally=task_histograms(1))
    _, increases = seen.diff([again], START + 1000)
    # Another process of that name.
    assert sum_counters(increases)[1][StatsField.END_TO_END] == {0: 1}
    assert WorkerCounters(5).since(WorkerCounters(9)) == WorkerCounters(5), "it was reset"


def test_tokens_are_counted() -> None:
    def heartbeat(at: int, prompt: int, completion: int) -> Any:
        model = {"state": "ready", "prompt_tokens": prompt, "completion_tokens": completion}
        return beat(started_ms=OLD, seen_ms=at, model=model)

    seen, _ = WorkerBaselines().diff([heartbeat(START, 100, 10)], START)
    _, increases = seen.diff([heartbeat(START + 1, 130, 17)], START)
    values, _ = sum_counters(increases)
    assert values == {StatsField.PROMPT_TOKENS: 30, StatsField.COMPLETION_TOKENS: 7}


def test_next_sampler_restores_the_baselines() -> None:
    first = beat(started_ms=OLD, seen_ms=START, tally=task_histograms(0, 7, waits=(1,)))
    seen, _ = WorkerBaselines().diff([first], START)
    later = beat(started_ms=OLD, seen_ms=START + 1, tally=task_histograms(0, 9, waits=(1,)))
    _, increases = WorkerBaselines.decode(seen.encode().encode()).diff([later], START)
    assert sum_counters(increases)[1] == {StatsField.END_TO_END: {1: 2}, StatsField.QUEUE_WAIT: {}}


def test_baselines_of_dead_workers_and_invalid_ones_are_dropped() -> None:
    seen, _ = WorkerBaselines().diff([beat(started_ms=OLD, seen_ms=START)], START)
    assert "w1" in seen.encode()
    seen, _ = seen.diff([], START + WORKER_FORGET_MS)
    assert seen.encode() == "{}"
    for raw in (b"", b"x", b"[]", b"7", b'{"w":1}', b'{"w":[1,2]}', b'{"w":[1,2,3,4,5,"x"]}'):
        assert WorkerBaselines.decode(raw).encode() == "{}", raw

"""The history reader: each sample is read once and returned as a point."""

from __future__ import annotations

import pytest

from common.contracts.stats import ONE_SECOND, TEN_SECONDS, StatsColumn
from gateway.observability.history import reader as module
from gateway.observability.history.reader import HistoryReader
from gateway.observability.history.samples import COLUMNS, Number, Point, columns, make_point
from tests.support.gateway.history import START, STATS, History, sample

pytestmark = pytest.mark.fakeredis_only


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 10)


def value(one: Point, column: StatsColumn) -> Number | None:
    return one.values[COLUMNS.index(column.value)]


def test_one_second_point_covers_ten_samples() -> None:
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


def test_longer_point_covers_one_sample() -> None:
    found = make_point([sample(START, {4: 10}, done=30, prompt_tokens=100)], TEN_SECONDS)
    assert value(found, StatsColumn.DONE) == 30
    assert value(found, StatsColumn.PROMPT_TOKENS_PER_S) == 10
    assert value(found, StatsColumn.QUEUE_WAIT_P99_MS) is None
    assert found.view()["ts"] == START
    assert len(found.values) == len(COLUMNS)


async def test_samples_are_read_once(history: History) -> None:
    await history.put([sample(START + n * 1000, done=n) for n in range(60)])
    known = HistoryReader(history.rings)
    found = await known.points(ONE_SECOND)
    assert [each.ts for each in found] == [START + n * 1000 for n in range(60)]
    assert await known.points(ONE_SECOND, START + 59_000) == []
    read: list[int] = []
    after = history.rings.after

    async def counting(*args: object, **options: object) -> object:
        page = await after(*args, **options)  # type: ignore[arg-type]
        read.append(len(page))
        return page

    history.rings.after = counting  # type: ignore[method-assign, assignment]
    await history.put([sample(START + 60_000, done=7), sample(START + 61_000)])
    news = await known.points(ONE_SECOND, START + 59_000)
    assert [each.ts for each in news] == [START + 60_000, START + 61_000]
    assert read == [3], "the last known sample and the new ones"
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


async def test_several_samples_of_one_time_count_once(history: History) -> None:
    """Only third-party writers add several samples at one time."""
    await history.put([sample(START, done=1)])
    for number in range(1, 3 * module.PAGE):
        await history.redis.xadd(STATS.ring(ONE_SECOND), {"done": "9"}, f"{START}-{number}")
    known = HistoryReader(history.rings)
    for _ in range(3):
        assert [each.ts for each in await known.points(ONE_SECOND)] == [START]

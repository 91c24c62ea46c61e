"""`GET /v1/stats` over HTTP."""

from __future__ import annotations

import time

import pytest

from common.contracts.stats import FIVE_MINUTES, ONE_SECOND, TEN_SECONDS, Resolution, StatsColumn
from gateway.observability.history.models import StatsView
from tests.support.gateway.harness import Gateway, check_problem
from tests.support.gateway.history import STATS, History, sample

pytestmark = pytest.mark.fakeredis_only

RANGES = {
    "10m": ONE_SECOND,
    "1h": TEN_SECONDS,
    "6h": TEN_SECONDS,
    "24h": FIVE_MINUTES,
    "14d": FIVE_MINUTES,
}
LENGTHS = {"10m": 600, "1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600, "14d": 14 * 24 * 3600}


def times(resolution: Resolution, count: int) -> list[int]:
    step = resolution.step_ms
    last = int(time.time() * 1000) // step * step - step
    return [last - n * step for n in reversed(range(count))]


async def test_each_range_has_its_resolution(gateway: Gateway, history: History) -> None:
    for resolution in (FIVE_MINUTES, TEN_SECONDS, ONE_SECOND):  # the shortest last: time passes
        # Rows without a sample are null: a sample in each range and the newest are enough.
        kept = times(resolution, resolution.length)
        rows = [LENGTHS[name] * 1000 // resolution.step_ms for name in LENGTHS]
        first = {len(kept) - count for count in rows if count <= len(kept)}
        samples = [sample(kept[at], done=2) for at in sorted({*first, len(kept) - 1})]
        await history.put(samples, resolution)
    for name, resolution in RANGES.items():
        rows = LENGTHS[name] * 1000 // resolution.step_ms
        answer = await gateway.client.get(f"/v1/stats?range={name}&columns=done")
        assert answer.status == 200
        assert answer.header("cache-control") == "no-store"
        body = answer.json()
        assert (body["range"], body["resolution_s"]) == (name, resolution.step_ms // 1000)
        assert body["until_ms"] - body["since_ms"] == LENGTHS[name] * 1000
        assert abs(len(body["series"]["ts"]) - rows) <= 1
        assert set(body["series"]) == {"ts", "done"}
        assert (body["series"]["done"][-1], set(body["series"]["done"])) == (2, {2, None})
        StatsView.model_validate(body)


async def test_now_is_the_newest_second(gateway: Gateway, history: History) -> None:
    first, last = times(ONE_SECOND, 2)
    await history.put([sample(first, depth=1), sample(last, {3: 1}, depth=4, done_total=9)])
    body = (await gateway.client.get("/v1/stats?range=24h")).json()
    now = body["now"]
    assert (now["ts"], now["depth"], now["e2e_p50_ms"]) == (last, 4, 7.5)
    assert now["totals"] == {"accepted": None, "done": 9, "error": None, "canceled": None}
    assert set(now) == {"ts", "totals", *(column.value for column in StatsColumn)}
    assert set(body["series"]) == {"ts", *(column.value for column in StatsColumn)}


async def test_samples_before_the_range_are_left_out(gateway: Gateway, history: History) -> None:
    old, new = times(TEN_SECONDS, 2)
    await history.put([sample(old - 3_600_000, done=1), sample(new, done=2)], TEN_SECONDS)
    body = (await gateway.client.get("/v1/stats?range=1h")).json()
    assert body["series"]["done"] == [2]
    body = (await gateway.client.get("/v1/stats?range=6h")).json()
    assert (body["series"]["done"][0], body["series"]["done"][-1]) == (1, 2)
    assert set(body["series"]["done"][1:-1]) == {None}


async def test_unknown_range_or_column_is_rejected(gateway: Gateway) -> None:
    columns = ("columns=done,nonsense", "columns=", "columns=,")
    for query in ("range=2h", "range=", "range=10M", *columns):
        check_problem(await gateway.client.get(f"/v1/stats?{query}"), 422, "invalid_request")


async def test_no_rows_are_filled_up_to_the_far_future(gateway: Gateway, history: History) -> None:
    """A clock that was set back leaves samples in the future for a while."""
    [now] = times(ONE_SECOND, 1)
    await history.put([sample(now, done=1), sample(now + 10**8, done=2)])
    body = (await gateway.client.get("/v1/stats?columns=done")).json()
    assert body["series"] == {"ts": [now], "done": [1]}
    assert body["now"]["done"] == 2


async def test_without_samples_values_are_null(gateway: Gateway, history: History) -> None:
    for corrupt in (False, True):
        if corrupt:
            await history.redis.set(STATS.ring(ONE_SECOND), "text")
        body = (await gateway.client.get("/v1/stats")).json()
        assert body["range"] == "10m"
        assert set(body["now"].pop("totals").values()) == {None}
        assert set(body["now"].values()) == {None}
        assert all(column == [] for column in body["series"].values())

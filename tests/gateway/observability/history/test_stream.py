"""`GET /v1/stats` and `GET /v1/stream`: the history and job changes for dashboard pages."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from sluice.common.aio import cancel
from sluice.common.contracts.stats import (
    FIVE_MINUTES,
    ONE_SECOND,
    TEN_SECONDS,
    Resolution,
    StatsColumn,
)
from sluice.common.errors import StoreUnavailable
from sluice.gateway.dashboard.activity import subscriber
from sluice.gateway.dashboard.activity.feed import MAX_JOBS_PER_EVENT, MAX_PENDING_CHANGES
from sluice.gateway.observability.history.models import StatsView
from tests.support.gateway.access import bearer, call, key_for, post
from tests.support.gateway.asgi import Exchange
from tests.support.gateway.faults import record_calls
from tests.support.gateway.harness import Gateway, check_problem, settle
from tests.support.gateway.history import STATS, History, sample
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

NOW = int(time.time() * 1000) // 1000 * 1000
EMPTY = "/v1/stream"
TIMES = ("created_ts", "updated_ts")


async def open_page(gateway: Gateway, query: str = "", **headers: str) -> Exchange:
    """Open a stream and read its hello event."""
    gateway.history.feed._tick_s = 0.01
    page = await gateway.client.begin("GET", f"/v1/stream{query}", headers).start()
    assert page.status == 200
    hello = await page.block()
    assert hello.event == "hello"
    return page


async def jobs_in(page: Exchange, count: int) -> list[dict[str, Any]]:
    """Wait for job changes on the stream; at least `count`."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += (await page.event("jobs")).json()["jobs"]
    return found


async def queued(gateway: Gateway, *job_ids: str) -> None:
    """Store jobs."""
    async with gateway.redis.pipeline() as pipe:
        for job_id in job_ids:
            fields = {"status": "queued", "updated_ts": "1"}
            pipe.hset(gateway.keys.job(job_id), mapping=fields)
        await pipe.execute()


async def test_each_second_is_streamed(gateway: Gateway, history: History) -> None:
    await history.put([sample(NOW + n * 1000, done=n) for n in range(3)])
    page = await open_page(gateway)
    first = await page.event("stats")
    assert first.id == f"{NOW + 2000}-0", "only the newest point"
    assert set(first.json()) == {"ts", *(column.value for column in StatsColumn)}
    await history.put([sample(NOW + 3000, done=30), sample(NOW + 4000, done=40)])
    news = [await page.event("stats") for _ in range(2)]
    assert [(block.id, block.json()["done"]) for block in news] == [
        (f"{NOW + 3000}-0", 30),
        (f"{NOW + 4000}-0", 40),
    ]


async def test_job_changes_are_streamed(gateway: Gateway) -> None:
    page = await open_page(gateway, "?only=jobs")
    job_id = await gateway.create()
    [changed] = await jobs_in(page, 1)
    job = (await gateway.client.get(f"/v1/jobs/{job_id}")).json()
    assert set(changed) == {*("job_id", "task", "status", "ttl_s", "error"), *TIMES}
    assert changed.items() <= job.items()
    for _ in range(5):  # no change of the job
        await gateway.emit(job_id, "message", {"text": "a token"})
        await gateway.history.feed.run_once()
    error = {"kind": "timeout", "message": "x" * 5000, "attempt": 1, "secret": "y"}
    await gateway.redis.hset(gateway.keys.job(job_id), "error", json.dumps(error))
    await gateway.finish(job_id, "error")
    [changed] = await jobs_in(page, 1)
    assert (changed["job_id"], changed["status"]) == (job_id, "error")
    assert changed["error"] == {"kind": "timeout", "message": "x" * 200}


async def test_many_changes_are_cut_to_the_newest_and_a_count(gateway: Gateway) -> None:
    page = await open_page(gateway, "?only=jobs")
    feed = gateway.history.feed
    ids = [f"job-{n}" for n in range(MAX_PENDING_CHANGES + 30)]
    await queued(gateway, *ids)
    feed.on_hint(" ".join(ids).encode())
    first = (await page.event("jobs")).json()
    assert first["more"] == 30
    assert [job["job_id"] for job in first["jobs"]] == ids[: -MAX_JOBS_PER_EVENT - 1 : -1]
    rest = await jobs_in(page, MAX_PENDING_CHANGES - MAX_JOBS_PER_EVENT)
    assert {job["job_id"] for job in rest} == set(ids[30:-MAX_JOBS_PER_EVENT])


async def test_each_audience_gets_every_change(strict: Gateway) -> None:
    tenant = await key_for(strict, **scoped("ui", "jobs:write", tenant="a"))
    own_job = (await post(strict, tenant)).json()["job_id"]
    admin = await key_for(strict, **scoped("admin"))
    own, everything = [
        await open_page(strict, "?only=jobs", **bearer(key)) for key in (tenant, admin)
    ]
    others = [f"job-{n}" for n in range(MAX_JOBS_PER_EVENT)]
    await queued(strict, *others)
    strict.history.feed.on_hint(" ".join([own_job, *others]).encode())
    assert [job["job_id"] for job in await jobs_in(own, 1)] == [own_job]
    streamed = [job["job_id"] for job in await jobs_in(everything, MAX_JOBS_PER_EVENT + 1)]
    assert streamed == [*reversed(others), own_job], "the oldest change is sent last"


async def test_jobs_before_the_first_subscriber_are_not_streamed(gateway: Gateway) -> None:
    await open_page(gateway, "?only=stats")
    first = await open_page(gateway, "?only=jobs")
    seen = await gateway.create()
    assert [job["job_id"] for job in await jobs_in(first, 1)] == [seen]
    await first.hang_up()
    await eventually(lambda: gateway.history.feed.clients == 1)
    await gateway.create()
    page = await open_page(gateway, "?only=jobs")
    fresh = await gateway.create()
    assert [job["job_id"] for job in await jobs_in(page, 1)] == [fresh]


async def test_stream_continues_after_the_clock_went_back(
    gateway: Gateway, history: History
) -> None:
    await history.put([sample(NOW - 2000), sample(NOW + 3_600_000)])
    page = await open_page(gateway)
    assert (await page.event("stats")).id == f"{NOW + 3_600_000}-0"
    await history.redis.delete(STATS.ring(ONE_SECOND))
    await history.put([sample(NOW - 2000), sample(NOW - 1000)])
    assert (await page.event("stats")).id == f"{NOW - 1000}-0"
    await history.put([sample(NOW)])
    assert (await page.event("stats")).id == f"{NOW}-0"


async def test_only_core_jobs_are_streamed(gateway: Gateway) -> None:
    page = await open_page(gateway, "?only=jobs")
    keys, feed = gateway.keys, gateway.history.feed
    await gateway.redis.set(keys.job("a-string"), "text")
    hints = "wf_20260214_001 image:status:7 gone a-string  \xff " + "x" * 500
    feed.on_hint(hints.encode())
    job_id = await gateway.create()
    [changed] = await jobs_in(page, 1)
    assert changed["job_id"] == job_id


async def test_resumed_stream_gets_missed_points(gateway: Gateway, history: History) -> None:
    await history.put([sample(NOW + n * 1000, done=n) for n in range(5)])
    page = await open_page(gateway, last_event_id=f"{NOW + 1000}-0")
    ids = [(await page.event("stats")).id for _ in range(3)]
    assert ids == [f"{NOW + n * 1000}-0" for n in (2, 3, 4)]
    again = await open_page(gateway, f"?last_event_id={NOW + 3000}-0")
    assert (await again.event("stats")).id == f"{NOW + 4000}-0"
    ahead = await open_page(gateway, last_event_id=f"{NOW + 10**9}-0")
    await history.put([sample(NOW + 5000)])
    assert (await ahead.event("stats")).id == f"{NOW + 5000}-0", "beyond the end is the end"
    late = await open_page(gateway, last_event_id=f"{NOW - 3_600_000}-0")
    gap = await late.block()
    assert gap.event == "gap"
    assert gap.json()["data"] == {"from": f"{NOW - 3_600_000}-0", "to": f"{NOW}-0"}
    assert (await late.event("stats")).id == f"{NOW}-0"


async def test_one_reader_serves_all_pages_and_stops_with_the_last(gateway: Gateway) -> None:
    feed: Any = gateway.history.feed
    assert not feed._reader
    pages = [await open_page(gateway) for _ in range(5)]
    reader = feed._reader
    assert reader is not None
    assert feed.clients == gateway.state.streams.clients == 5
    for page in pages[1:]:
        await page.hang_up()
    await settle()
    assert feed._reader is reader
    assert not reader.done()
    await pages[0].hang_up()
    await asyncio.wait_for(reader, 5)
    assert feed.clients == 0
    assert feed._trackers == {}
    page = await open_page(gateway, "?only=jobs")
    job_id = await gateway.create()
    assert (await jobs_in(page, 1))[0]["job_id"] == job_id


async def test_slow_page_gets_a_gap_notice(
    gateway: Gateway, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "MAX_QUEUED_BYTES", 3000)
    await history.put([sample(NOW)])
    page = await open_page(gateway, "?only=stats")
    assert (await page.event("stats")).id == f"{NOW}-0"
    page.take.clear()
    await history.put([sample(NOW + 1000)])
    await asyncio.wait_for(page.held_up.wait(), 10)
    await history.put([sample(NOW + n * 1000) for n in range(2, 12)])
    feed = gateway.history.feed
    await eventually(lambda: gateway.hub.metrics.slow == 1)
    [watch] = feed._subscribers
    page.take.set()
    assert (await page.event("stats")).id == f"{NOW + 1000}-0"
    gap = await page.event("gap")
    assert gap.json()["data"] == {"from": f"{NOW + 1000}-0", "to": f"{NOW + 11_000}-0"}
    await history.put([sample(NOW + 12_000)])
    assert (await page.event("stats")).id == f"{NOW + 12_000}-0"
    assert watch.live


async def test_stream_survives_an_unreachable_redis(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await open_page(gateway, "?only=jobs")
    summaries = gateway.history.feed._summaries
    reading, errors = summaries.read, [StoreUnavailable("away"), RuntimeError("a mistake")]

    async def failing(job_ids: Any) -> Any:
        ids = list(job_ids)
        if ids and errors:
            raise errors.pop(0)
        return await reading(ids)

    monkeypatch.setattr(summaries, "read", failing)
    job_id = await gateway.create()
    assert [job["job_id"] for job in await jobs_in(page, 1)] == [job_id]
    assert errors == []


# -- permissions -------------------------------------------------------------------------------


def scoped(*scopes: str, tenant: str = "") -> dict[str, Any]:
    return {"scopes": frozenset(scopes), "tenant": tenant}


async def test_scopes_decide_the_event_types(strict: Gateway) -> None:
    assert (await call(strict, "GET", EMPTY)).status == 401
    for scopes, events in (
        (("metrics",), ["stats"]),
        (("jobs:read",), ["jobs"]),
        (("ui",), ["stats", "jobs"]),
        (("admin",), ["stats", "jobs"]),
        (("metrics", "jobs:read"), ["stats", "jobs"]),
        (("jobs:write",), []),
    ):
        key = await key_for(strict, **scoped(*scopes))
        if events:
            page = await strict.client.begin("GET", EMPTY, bearer(key)).start()
            assert page.status == 200
            hello = await page.block()
            assert hello.json()["data"]["only"] == events
        for event in ("stats", "jobs"):
            target = f"/v1/stream?only={event}"
            if event in events:
                page = await strict.client.begin("GET", target, bearer(key)).start()
                assert page.status == 200
            else:
                refused = await call(strict, "GET", target, key)
                check_problem(refused, 403, "insufficient_scope")


async def test_tenant_sees_only_its_own_jobs(strict: Gateway) -> None:
    both = ("jobs:read", "jobs:write")
    keys = {name: await key_for(strict, **scoped(*both, tenant=name)) for name in ("a", "b")}
    admin = await key_for(strict, **scoped("admin"))
    pages = {
        name: await strict.client.begin("GET", f"{EMPTY}?only=jobs", bearer(key)).start()
        for name, key in (*keys.items(), ("all", admin))
    }
    ids: dict[str, list[str]] = {}
    for name, key in keys.items():  # Python 3.10 has no nested asynchronous comprehensions
        ids[name] = [(await post(strict, key)).json()["job_id"] for _ in range(3)]
    for name in ("a", "b"):
        seen = {job["job_id"] for job in await jobs_in(pages[name], 3)}
        assert seen == set(ids[name])
    seen = {job["job_id"] for job in await jobs_in(pages["all"], 6)}
    assert seen == {*ids["a"], *ids["b"]}
    hidden = " ".join(f"job-{n}" for n in range(MAX_PENDING_CHANGES * 2))
    strict.history.feed.on_hint(hidden.encode())
    job_id = (await post(strict, keys["a"])).json()["job_id"]
    changed = (await pages["a"].event("jobs")).json()
    assert ([job["job_id"] for job in changed["jobs"]], changed["more"]) == ([job_id], 0)


async def test_thirty_pages_cost_redis_as_much_as_one(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, feed = gateway.state.client, gateway.history.feed
    commands = record_calls(monkeypatch, client, "execute_command")
    counts = []
    for number in (1, 29):
        for _ in range(number):
            await open_page(gateway)
        await settle()
        assert feed._reader is not None
        await cancel(feed._reader)  # it must not read at the same time
        commands.clear()
        await feed.run_once()
        counts.append(len(commands))
    assert feed.clients == 30
    assert 0 < counts[0] == counts[1]


#: By range: its resolution and its length in seconds.
RANGES = {
    "10m": (ONE_SECOND, 600),
    "1h": (TEN_SECONDS, 3600),
    "6h": (TEN_SECONDS, 6 * 3600),
    "24h": (FIVE_MINUTES, 24 * 3600),
    "14d": (FIVE_MINUTES, 14 * 24 * 3600),
}


def times(resolution: Resolution, count: int) -> list[int]:
    step = resolution.step_ms
    last = int(time.time() * 1000) // step * step - step
    return [last - n * step for n in reversed(range(count))]


async def test_each_range_has_its_resolution(gateway: Gateway, history: History) -> None:
    for resolution in (FIVE_MINUTES, TEN_SECONDS, ONE_SECOND):  # the shortest last: time passes
        # Rows without a sample are null: a sample in each range and the newest are enough.
        kept = times(resolution, resolution.length)
        rows = [length_s * 1000 // resolution.step_ms for _, length_s in RANGES.values()]
        first = {len(kept) - count for count in rows if count <= len(kept)}
        samples = [sample(kept[at], done=2) for at in sorted({*first, len(kept) - 1})]
        await history.put(samples, resolution)
    for name, (resolution, length_s) in RANGES.items():
        rows = length_s * 1000 // resolution.step_ms
        answer = await gateway.client.get(f"/v1/stats?range={name}&columns=done")
        assert answer.status == 200
        assert answer.header("cache-control") == "no-store"
        body = answer.json()
        assert (body["range"], body["resolution_s"]) == (name, resolution.step_ms // 1000)
        assert body["until_ms"] - body["since_ms"] == length_s * 1000
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


async def test_samples_outside_of_the_range_are_left_out(
    gateway: Gateway, history: History
) -> None:
    old, new = times(TEN_SECONDS, 2)
    await history.put([sample(old - 3_600_000, done=1), sample(new, done=2)], TEN_SECONDS)
    body = (await gateway.client.get("/v1/stats?range=1h")).json()
    assert body["series"]["done"] == [2]
    body = (await gateway.client.get("/v1/stats?range=6h")).json()
    assert (body["series"]["done"][0], body["series"]["done"][-1]) == (1, 2)
    assert set(body["series"]["done"][1:-1]) == {None}
    # A clock that was set back leaves samples in the future for a while.
    [now] = times(ONE_SECOND, 1)
    await history.put([sample(now, done=1), sample(now + 10**8, done=2)])
    body = (await gateway.client.get("/v1/stats?columns=done")).json()
    assert body["series"] == {"ts": [now], "done": [1]}, "no rows are filled up to that time"
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


async def test_invalid_requests_are_rejected(gateway: Gateway) -> None:
    get = gateway.client.get
    check_problem(await get(EMPTY, {"last-event-id": "x"}), 400, "invalid_last_event_id")
    only = [f"{EMPTY}?only={names}" for names in ("", "nonsense", "stats,x", ",")]
    queries = ("range=2h", "range=", "range=10M", "columns=done,nonsense", "columns=", "columns=,")
    for target in (*only, *(f"/v1/stats?{query}" for query in queries)):
        check_problem(await get(target), 422, "invalid_request")

"""Rates and quotas in ENQUEUE, and PRUNE_QUOTA, which removes ended jobs from a quota."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.contracts.access import AccessKeys
from common.errors import (
    CorruptKey,
    IdempotencyConflict,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ScheduleFull,
)
from common.jobs.limits import KeyLimits
from common.jobs.scripts import CORE_SCRIPT
from common.jobs.store import AcceptedJob, JobStore, NewJob
from common.redis.batching import ScriptBatcher
from tests.support.servers import Backend
from tests.support.store.jobs import Proxy, StoreHarness, new_job

#: One per hour, so that no time passes within a test.
HOUR_US = 3_600_000_000


def rate(harness: StoreHarness) -> str:
    return AccessKeys(harness.keys.tag).rate("k")


def quota(harness: StoreHarness) -> str:
    return AccessKeys(harness.keys.tag).active("k")


def limits(
    harness: StoreHarness, interval_us: int = 0, burst: int = 0, max_jobs: int = 0
) -> KeyLimits:
    return KeyLimits(rate(harness), quota(harness), interval_us, burst, max_jobs)


async def post(harness: StoreHarness, wanted: KeyLimits | None, **changes: Any) -> AcceptedJob:
    most = changes.pop("backlog", 10**9)
    job = changes.pop("job", None) or new_job(limits=wanted, **changes)
    return await harness.store.enqueue(job, harness.worker.group, most)


async def now_us(harness: StoreHarness) -> int:
    seconds, micros = await harness.client.time()
    return int(seconds) * 1_000_000 + int(micros)


async def due(harness: StoreHarness) -> int:
    return int(await harness.client.get(rate(harness)) or 0)


async def active(harness: StoreHarness) -> set[str]:
    return {member.decode() for member in await harness.client.zrange(quota(harness), 0, -1)}


async def test_a_burst_is_limited(harness: StoreHarness) -> None:
    """Time is simulated by setting the state back, to the microsecond."""
    wanted = limits(harness, HOUR_US, burst=3)
    for _ in range(3):
        await post(harness, wanted)
    async with harness.unchanged():
        with pytest.raises(RateLimited) as refused:
            await post(harness, wanted)
    assert 3_590_000 < refused.value.wait_ms <= 3_600_000  # one interval from the first
    assert await harness.client.xlen(harness.keys.queue) == 3
    earlier = await due(harness) - refused.value.wait_ms * 1000
    await harness.client.set(rate(harness), str(earlier + 60_000_000))  # a minute too early
    with pytest.raises(RateLimited) as again:
        await post(harness, wanted)
    assert again.value.wait_ms <= 60_000
    await harness.client.set(rate(harness), str(earlier))
    await post(harness, wanted)
    with pytest.raises(RateLimited):
        await post(harness, wanted)


@pytest.mark.parametrize(("rate_us", "burst"), [(1000, 1), (250_000, 4), (HOUR_US, 7)])
async def test_the_state_is_when_the_next_job_is_allowed(
    harness: StoreHarness, rate_us: int, burst: int
) -> None:
    before = await now_us(harness)
    await post(harness, limits(harness, rate_us, burst))
    after = await now_us(harness)
    assert before + rate_us <= await due(harness) <= after + rate_us
    first = await due(harness)
    if burst > 1:
        await post(harness, limits(harness, rate_us, burst))
        assert await due(harness) == first + rate_us or await now_us(harness) >= first
    # It expires when it no longer matters.
    await harness.client.delete(rate(harness))
    await post(harness, limits(harness, 5_000_000, burst=2))
    assert 4_000 < await harness.client.pttl(rate(harness)) <= 6_001
    await harness.client.delete(rate(harness))
    await post(harness, limits(harness, 5_000_000, burst=2))


async def test_at_full_speed_the_rate_is_not_exceeded(harness: StoreHarness) -> None:
    wanted = limits(harness, 50_000, burst=5)
    began = await now_us(harness)
    passed = 0
    for _ in range(60):
        outcomes = await asyncio.gather(
            *(post(harness, wanted) for _ in range(4)), return_exceptions=True
        )
        assert all(isinstance(outcome, (AcceptedJob, RateLimited)) for outcome in outcomes)
        passed += sum(isinstance(outcome, AcceptedJob) for outcome in outcomes)
    elapsed = await now_us(harness) - began
    assert 5 <= passed <= 5 + elapsed // 50_000 + 1


@pytest.mark.parametrize("state", ["", "soon", "-5", "nan", "inf", "9" * 30])
async def test_an_invalid_state_delays_at_most_a_full_burst(
    harness: StoreHarness, state: str
) -> None:
    """At worst a caller waits as after a full burst, but never for ever."""
    await harness.client.set(rate(harness), state)
    wanted = limits(harness, HOUR_US, burst=2)
    if state in ("inf", "9" * 30):
        with pytest.raises(RateLimited) as refused:
            await post(harness, wanted)
        assert refused.value.wait_ms <= 3_600_000
    else:
        await post(harness, wanted)
        assert abs(await due(harness) - await now_us(harness)) <= HOUR_US


@pytest.mark.parametrize("name", [rate, quota])
async def test_a_state_of_the_wrong_type_changes_nothing(harness: StoreHarness, name: Any) -> None:
    await harness.client.hset(name(harness), "a", "b")
    async with harness.unchanged():
        with pytest.raises(CorruptKey):
            await post(harness, limits(harness, HOUR_US, burst=2, max_jobs=2))


async def test_a_quota_counts_accepted_jobs(harness: StoreHarness) -> None:
    wanted = limits(harness, max_jobs=2)
    jobs = {(await post(harness, wanted)).job_id for _ in range(2)}
    assert await active(harness) == jobs
    # A job may be delayed for thirty days, be queued for thirty, and run for thirty.
    assert 3 * 2_591_000 < await harness.client.ttl(quota(harness)) <= 3 * 2_592_000
    async with harness.unchanged():
        with pytest.raises(QuotaExceeded) as refused:
            await post(harness, wanted)
    assert refused.value.active == 2
    assert await harness.client.exists(rate(harness)) == 0
    await post(harness, None)  # other callers are not affected
    # Scheduled jobs count too.
    await harness.client.delete(quota(harness))
    wanted = limits(harness, max_jobs=1)
    await post(harness, wanted, delay_ms=60_000, schedule_limit=9)
    with pytest.raises(QuotaExceeded):
        await post(harness, wanted)


async def test_prune_quota_removes_all_kinds_of_ended_jobs(harness: StoreHarness) -> None:
    lease = await harness.running(limits=limits(harness, max_jobs=9))
    await harness.finish(lease)
    foreign, expired, canceled, broken, queued = [
        (await post(harness, limits(harness, max_jobs=9))).job_id for _ in range(5)
    ]
    running = (await harness.running(token="t2", limits=limits(harness, max_jobs=9))).job_id
    await harness.client.hset(harness.keys.job(foreign), "status", "done")
    await harness.client.delete(harness.keys.job(expired))
    await harness.cancel(canceled)
    await harness.client.delete(harness.keys.job(broken))
    await harness.client.set(harness.keys.job(broken), "no hash")
    assert len(await active(harness)) == 7
    assert await harness.queue.prune_quota(quota(harness)) == 5
    assert await active(harness) == {queued, running}
    assert await harness.queue.prune_quota(quota(harness)) == 0


async def test_prune_quota_handles_all_members(harness: StoreHarness) -> None:
    wanted = limits(harness, max_jobs=1000)
    alive = {(await post(harness, wanted)).job_id: 7 * number for number in range(20)}
    await harness.client.zadd(quota(harness), alive)
    gone = {f"gone-{number}": number for number in range(140)}  # between the others
    await harness.client.zadd(quota(harness), {b"\xff\xfe": 1, b"": 2, b"x y": 3, **gone})
    assert await harness.queue.prune_quota(quota(harness)) == len(gone) + 3
    assert await active(harness) == {*alive}
    assert await harness.queue.prune_quota(AccessKeys(harness.keys.tag).active("nobody")) == 0
    await harness.client.set(quota(harness), "no set")
    assert await harness.queue.prune_quota(quota(harness)) == 0


# -- both limits, and other cases ------------------------------------------------------------------


async def test_a_replay_or_a_lost_reply_is_free(harness: StoreHarness) -> None:
    wanted = limits(harness, HOUR_US, burst=1, max_jobs=1)
    key = {"idempotency_key": "k", "fingerprint": "f", "idempotency_ttl_s": 60}
    job = new_job(limits=wanted, **key)
    await post(harness, wanted, job=job)
    async with harness.unchanged():
        assert (await post(harness, wanted, job=job)).job_id == job.job_id
        for _ in range(3):
            assert await post(harness, wanted, **key) == (job.job_id, True)
        with pytest.raises(IdempotencyConflict):
            await post(harness, wanted, **{**key, "fingerprint": "another"})
    assert await active(harness) == {job.job_id}
    with pytest.raises(RateLimited):  # the rate is checked before the quota
        await post(harness, wanted, **{**key, "idempotency_key": "k2"})
    assert await harness.client.exists(harness.keys.idempotency("k2")) == 0


@pytest.mark.real_redis
@pytest.mark.one_server
async def test_a_broken_connection_does_not_count_twice(harness: StoreHarness) -> None:
    assert harness.backend.url is not None
    async with Proxy(harness.backend.url) as proxy:
        through = Backend("proxied", proxy.url)
        batcher = ScriptBatcher(through.wire(), harness.keys, CORE_SCRIPT, retry_for_s=5.0)
        store = JobStore(harness.client, harness.keys, batcher)
        await store.enqueue(new_job(), "workers", 9)  # connected, and the script is loaded
        proxy.lose_replies = 1
        job = new_job(limits=limits(harness, HOUR_US, burst=1, max_jobs=1))
        assert (await store.enqueue(job, "workers", 9)).job_id == job.job_id
        assert await active(harness) == {job.job_id}
        assert await due(harness) - await now_us(harness) <= HOUR_US
        await batcher.close()
        await through.close()


async def test_a_later_refusal_uses_up_nothing(harness: StoreHarness) -> None:
    wanted = limits(harness, HOUR_US, burst=2, max_jobs=1)
    await post(harness, None)
    async with harness.unchanged():
        with pytest.raises(QueueFull):
            await post(harness, wanted, backlog=1)
        with pytest.raises(ScheduleFull):
            await post(harness, wanted, delay_ms=1000, schedule_limit=0)
    await post(harness, wanted)
    async with harness.unchanged():
        with pytest.raises(QuotaExceeded):
            await post(harness, wanted)


async def test_limits_combine_with_options_and_keys_of_all_kinds(harness: StoreHarness) -> None:
    """Keys and arguments are where the script expects them, alone and among other records."""
    wanted = limits(harness, 1, burst=1000, max_jobs=1000)
    kinds: list[dict[str, Any]] = [
        {},
        {"limits": wanted},
        {"limits": limits(harness, max_jobs=1000)},
        {"limits": limits(harness, 1, burst=1000)},
        {"max_attempts": 3},
        {"max_attempts": 3, "limits": wanted},
        {"delay_ms": 60_000, "schedule_limit": 99, "limits": wanted},
        {"options": b"{}", "max_attempts": 2, "limits": wanted},
    ]
    jobs: list[NewJob] = []
    for number, kind in enumerate(kinds):
        jobs.append(new_job(**kind))
        named = {"idempotency_key": f"k{number}", "fingerprint": "f", "idempotency_ttl_s": 60}
        jobs.append(new_job(**kind, **named, tenant="shop"))
    await asyncio.gather(*(harness.store.enqueue(job, "workers", 10**6) for job in jobs))
    counted = {job.job_id for job in jobs if job.limits and job.limits.max_jobs}
    assert await active(harness) == counted
    for job in jobs:
        assert len(await harness.job(job.job_id)) == 9
        delayed = [b"scheduled"] if job.delay_ms else []
        assert await harness.types(job.job_id) == [b"queued", *delayed]
        attempts = (await harness.held(job.job_id)).get(b"max_attempts")
        assert attempts == (None if job.max_attempts is None else b"%d" % job.max_attempts)
        if job.idempotency_key:
            names = harness.keys.idempotency, harness.keys.fingerprint
            found = [await harness.client.get(name(job.idempotency_key, "shop")) for name in names]
            assert found == [job.job_id.encode(), b"f"]
    assert await harness.without_ttl() == []
    for key in await harness.client.keys("access:*"):
        assert await harness.client.ttl(key) > 0


async def test_idempotency_keys_are_per_tenant(harness: StoreHarness) -> None:
    named = {"idempotency_key": "k", "fingerprint": "f", "idempotency_ttl_s": 60}
    made = {
        (await post(harness, None, tenant=tenant, **named)).job_id
        for tenant in ("", "a", "b", "a", "", "b")
    }
    assert len(made) == 3
    await post(harness, None, max_attempts=2)
    assert await harness.client.keys("access:*") == []  # without limits there is no state

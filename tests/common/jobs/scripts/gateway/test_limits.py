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
from tests.common.kit import Proxy, Scene, new_job
from tests.support.backends import Backend

#: One per hour, so that no time passes within a test.
HOUR_US = 3_600_000_000


def rate(scene: Scene) -> str:
    return AccessKeys(scene.keys.tag).rate("k")


def quota(scene: Scene) -> str:
    return AccessKeys(scene.keys.tag).active("k")


def limits(scene: Scene, interval_us: int = 0, burst: int = 0, max_jobs: int = 0) -> KeyLimits:
    return KeyLimits(rate(scene), quota(scene), interval_us, burst, max_jobs)


async def post(scene: Scene, wanted: KeyLimits | None, **changes: Any) -> AcceptedJob:
    most = changes.pop("backlog", 10**9)
    job = changes.pop("job", None) or new_job(limits=wanted, **changes)
    return await scene.store.enqueue(job, scene.worker.group, most)


async def now_us(scene: Scene) -> int:
    seconds, micros = await scene.client.time()
    return int(seconds) * 1_000_000 + int(micros)


async def due(scene: Scene) -> int:
    return int(await scene.client.get(rate(scene)) or 0)


async def active(scene: Scene) -> set[str]:
    return {member.decode() for member in await scene.client.zrange(quota(scene), 0, -1)}


# -- rate ------------------------------------------------------------------------------------------


async def test_a_burst_is_limited(scene: Scene) -> None:
    wanted = limits(scene, HOUR_US, burst=3)
    for _ in range(3):
        await post(scene, wanted)
    before = await scene.snapshot()
    with pytest.raises(RateLimited) as refused:
        await post(scene, wanted)
    assert await scene.snapshot() == before
    assert 3_590_000 < refused.value.wait_ms <= 3_600_000  # one interval from the first
    assert await scene.client.xlen(scene.keys.queue) == 3


async def test_a_request_after_the_wait_is_accepted(scene: Scene) -> None:
    """Time is simulated by setting the state back, to the microsecond."""
    wanted = limits(scene, HOUR_US, burst=2)
    for _ in range(2):
        await post(scene, wanted)
    with pytest.raises(RateLimited) as refused:
        await post(scene, wanted)
    earlier = await due(scene) - refused.value.wait_ms * 1000
    await scene.client.set(rate(scene), str(earlier + 60_000_000))  # a minute too early
    with pytest.raises(RateLimited) as again:
        await post(scene, wanted)
    assert again.value.wait_ms <= 60_000
    await scene.client.set(rate(scene), str(earlier))
    await post(scene, wanted)
    with pytest.raises(RateLimited):
        await post(scene, wanted)


@pytest.mark.parametrize(("rate_us", "burst"), [(1000, 1), (250_000, 4), (HOUR_US, 7)])
async def test_the_state_is_when_the_next_job_is_allowed(
    scene: Scene, rate_us: int, burst: int
) -> None:
    before = await now_us(scene)
    await post(scene, limits(scene, rate_us, burst))
    after = await now_us(scene)
    assert before + rate_us <= await due(scene) <= after + rate_us
    first = await due(scene)
    if burst > 1:
        await post(scene, limits(scene, rate_us, burst))
        assert await due(scene) == first + rate_us or await now_us(scene) >= first


async def test_the_state_expires_when_it_no_longer_matters(scene: Scene) -> None:
    await post(scene, limits(scene, 5_000_000, burst=2))
    assert 4_000 < await scene.client.pttl(rate(scene)) <= 6_001
    await scene.client.delete(rate(scene))
    await post(scene, limits(scene, 5_000_000, burst=2))


async def test_at_full_speed_the_rate_is_not_exceeded(scene: Scene) -> None:
    wanted = limits(scene, 50_000, burst=5)
    began = await now_us(scene)
    passed = 0
    for _ in range(60):
        outcomes = await asyncio.gather(
            *(post(scene, wanted) for _ in range(4)), return_exceptions=True
        )
        assert all(isinstance(outcome, (AcceptedJob, RateLimited)) for outcome in outcomes)
        passed += sum(isinstance(outcome, AcceptedJob) for outcome in outcomes)
    elapsed = await now_us(scene) - began
    assert 5 <= passed <= 5 + elapsed // 50_000 + 1


@pytest.mark.parametrize("state", ["", "soon", "-5", "nan", "inf", "9" * 30])
async def test_an_invalid_state_delays_at_most_a_full_burst(scene: Scene, state: str) -> None:
    """At worst a caller waits as after a full burst, but never for ever."""
    await scene.client.set(rate(scene), state)
    if state in ("inf", "9" * 30):
        with pytest.raises(RateLimited) as refused:
            await post(scene, limits(scene, HOUR_US, burst=2))
        assert refused.value.wait_ms <= 3_600_000
    else:
        await post(scene, limits(scene, HOUR_US, burst=2))
        assert abs(await due(scene) - await now_us(scene)) <= HOUR_US


async def test_a_state_of_the_wrong_type_changes_nothing(scene: Scene) -> None:
    await scene.client.hset(rate(scene), "a", "b")
    before = await scene.snapshot()
    with pytest.raises(CorruptKey):
        await post(scene, limits(scene, HOUR_US, burst=2))
    assert await scene.snapshot() == before


# -- quota -----------------------------------------------------------------------------------------


async def test_a_quota_counts_accepted_jobs(scene: Scene) -> None:
    wanted = limits(scene, max_jobs=2)
    jobs = {(await post(scene, wanted)).job_id for _ in range(2)}
    assert await active(scene) == jobs
    # A job may be delayed for thirty days, be queued for thirty, and run for thirty.
    assert 3 * 2_591_000 < await scene.client.ttl(quota(scene)) <= 3 * 2_592_000
    before = await scene.snapshot()
    with pytest.raises(QuotaExceeded) as refused:
        await post(scene, wanted)
    assert refused.value.active == 2
    assert await scene.snapshot() == before
    assert await scene.client.exists(rate(scene)) == 0
    await post(scene, None)  # other callers are not affected


async def test_scheduled_jobs_count(scene: Scene) -> None:
    wanted = limits(scene, max_jobs=1)
    await post(scene, wanted, delay_ms=60_000, schedule_limit=9)
    with pytest.raises(QuotaExceeded):
        await post(scene, wanted)


async def test_prune_quota_removes_all_kinds_of_ended_jobs(scene: Scene) -> None:
    lease = await scene.running(limits=limits(scene, max_jobs=9))
    await scene.finish(lease)
    foreign, expired, canceled, broken, queued = [
        (await post(scene, limits(scene, max_jobs=9))).job_id for _ in range(5)
    ]
    running = await scene.running(token="t2", limits=limits(scene, max_jobs=9))
    await scene.client.hset(scene.keys.job(foreign), "status", "done")
    await scene.client.delete(scene.keys.job(expired))
    await scene.cancel(canceled)
    await scene.client.delete(scene.keys.job(broken))
    await scene.client.set(scene.keys.job(broken), "no hash")
    assert len(await active(scene)) == 7
    assert await scene.queue.prune_quota(quota(scene)) == 5
    assert await active(scene) >= {queued}
    assert len(await active(scene)) == 2
    del running
    assert await scene.queue.prune_quota(quota(scene)) == 0


async def test_prune_quota_handles_all_members(scene: Scene) -> None:
    wanted = limits(scene, max_jobs=1000)
    jobs = [(await post(scene, wanted)).job_id for _ in range(150)]
    alive = set(jobs[::7])
    for job_id in jobs:
        if job_id not in alive:
            await scene.client.hset(scene.keys.job(job_id), "status", "error")
    assert await scene.queue.prune_quota(quota(scene)) == len(jobs) - len(alive)
    assert await active(scene) == alive
    assert await scene.queue.prune_quota(AccessKeys(scene.keys.tag).active("nobody")) == 0


async def test_prune_quota_removes_invalid_members(scene: Scene) -> None:
    await scene.client.zadd(quota(scene), {b"\xff\xfe": 1, b"": 2, b"x y": 3})
    assert await scene.queue.prune_quota(quota(scene)) == 3
    await scene.client.set(quota(scene), "no set")
    assert await scene.queue.prune_quota(quota(scene)) == 0
    before = await scene.snapshot()
    with pytest.raises(CorruptKey):
        await post(scene, limits(scene, max_jobs=2))
    assert await scene.snapshot() == before


# -- both limits, and other cases ------------------------------------------------------------------


async def test_a_replay_is_free(scene: Scene) -> None:
    wanted = limits(scene, HOUR_US, burst=1, max_jobs=1)
    key = {"idempotency_key": "k", "fingerprint": "f", "idempotency_ttl_s": 60}
    first = await post(scene, wanted, **key)
    before = await scene.snapshot()
    for _ in range(3):
        again = await post(scene, wanted, **key)
        assert again == (first.job_id, True)
    with pytest.raises(IdempotencyConflict):
        await post(scene, wanted, **{**key, "fingerprint": "another"})
    assert await scene.snapshot() == before
    with pytest.raises(RateLimited):
        await post(scene, wanted, **{**key, "idempotency_key": "k2"})
    assert await scene.client.exists(scene.keys.idempotency("k2")) == 0


async def test_a_lost_reply_is_not_counted_twice(scene: Scene) -> None:
    wanted = limits(scene, HOUR_US, burst=1, max_jobs=1)
    job = new_job(limits=wanted)
    await post(scene, wanted, job=job)
    before = await scene.snapshot()
    assert (await post(scene, wanted, job=job)).job_id == job.job_id
    assert await scene.snapshot() == before
    assert await active(scene) == {job.job_id}


@pytest.mark.one_server
async def test_a_broken_connection_does_not_count_twice(real_scene: Scene) -> None:
    scene = real_scene
    assert scene.backend.url is not None
    async with Proxy(scene.backend.url) as proxy:
        through = Backend("proxied", proxy.url)
        batcher = ScriptBatcher(through.wire(), scene.keys, CORE_SCRIPT, retry_for_s=5.0)
        store = JobStore(scene.client, scene.keys, batcher)
        await store.enqueue(new_job(), "workers", 9)  # connected, and the script is loaded
        proxy.lose_replies = 1
        job = new_job(limits=limits(scene, HOUR_US, burst=1, max_jobs=1))
        assert (await store.enqueue(job, "workers", 9)).job_id == job.job_id
        assert await active(scene) == {job.job_id}
        assert await due(scene) - await now_us(scene) <= HOUR_US
        await batcher.close()
        await through.close()


@pytest.mark.parametrize("why", ["queue", "schedule", "quota"])
async def test_a_later_refusal_uses_up_nothing(scene: Scene, why: str) -> None:
    wanted = limits(scene, HOUR_US, burst=2, max_jobs=1)
    await post(scene, wanted if why == "quota" else None)
    before = await scene.snapshot()
    if why == "queue":
        with pytest.raises(QueueFull):
            await post(scene, wanted, backlog=1)
    elif why == "schedule":
        with pytest.raises(ScheduleFull):
            await post(scene, wanted, delay_ms=1000, schedule_limit=0)
    else:
        with pytest.raises(QuotaExceeded):
            await post(scene, wanted)
    assert await scene.snapshot() == before


async def test_the_rate_is_checked_first(scene: Scene) -> None:
    wanted = limits(scene, HOUR_US, burst=1, max_jobs=1)
    await post(scene, wanted)
    with pytest.raises(RateLimited):
        await post(scene, wanted)


async def test_limits_combine_with_options_and_keys_of_all_kinds(scene: Scene) -> None:
    """Keys and arguments are where the script expects them, alone and among other records."""
    wanted = limits(scene, 1, burst=1000, max_jobs=1000)
    kinds: list[dict[str, Any]] = [
        {},
        {"limits": wanted},
        {"limits": limits(scene, max_jobs=1000)},
        {"limits": limits(scene, 1, burst=1000)},
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
    await asyncio.gather(*(scene.store.enqueue(job, "workers", 10**6) for job in jobs))
    counted = {job.job_id for job in jobs if job.limits and job.limits.max_jobs}
    assert await active(scene) == counted
    for job in jobs:
        assert len(await scene.job(job.job_id)) == 9
        assert await scene.types(job.job_id) == (
            [b"queued", b"scheduled"] if job.delay_ms else [b"queued"]
        )
        lease = await scene.held(job.job_id)
        assert lease.get(b"max_attempts") == (
            None if job.max_attempts is None else str(job.max_attempts).encode()
        )
        if job.idempotency_key:
            found = await scene.client.get(scene.keys.idempotency(job.idempotency_key, "shop"))
            assert found == job.job_id.encode()
            fingerprint = scene.keys.fingerprint(job.idempotency_key, "shop")
            assert await scene.client.get(fingerprint) == b"f"
    assert await scene.without_ttl() == []
    assert not [key for key in await scene.client.keys("access:*") if await _endless(scene, key)]


async def _endless(scene: Scene, key: bytes) -> bool:
    return bool(await scene.client.ttl(key) < 0)


async def test_idempotency_keys_are_per_tenant(scene: Scene) -> None:
    named = {"idempotency_key": "k", "fingerprint": "f", "idempotency_ttl_s": 60}
    made = {
        (await post(scene, None, tenant=tenant, **named)).job_id
        for tenant in ("", "a", "b", "a", "", "b")
    }
    assert len(made) == 3


async def test_without_limits_no_state_is_written(scene: Scene) -> None:
    await post(scene, None)
    await post(scene, None, max_attempts=2)
    assert await scene.client.keys("access:*") == []

"""ENQUEUE: a job is accepted completely, or nothing changes; rates and quotas; PRUNE_QUOTA."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.common.contracts.access import AccessKeys
from sluice.common.errors import (
    IdempotencyConflict,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ScheduleFull,
)
from sluice.common.jobs.limits import KeyLimits
from sluice.common.jobs.store import AcceptedJob, NewJob
from tests.support.store.jobs import StoreHarness, new_job


async def test_writes_the_contract_and_nothing_else(harness: StoreHarness) -> None:
    payload = b'{"a":"\xff\xfe\x00\r\n' + "ü€𝄞".encode() + b'"}'
    job = new_job(ttl_s=77, payload=payload)
    assert await harness.store.enqueue(job, "workers", 200) == (job.job_id, False)
    record = await harness.job(job.job_id)
    created = record[b"created_ts"]
    message = {b"job_id": job.job_id.encode(), b"task": b"chat", b"payload": payload}
    times = {b"created_ts": created, b"updated_ts": created, b"ttl_s": b"77"}
    assert record == {**message, **times, b"status": b"queued", b"result": b"", b"error": b""}
    assert 0 <= await harness.now_ms() - int(created) < 60_000
    assert await harness.events(job.job_id) == [
        {b"type": b"queued", b"ts": created, b"step": b"gateway.enqueue", b"data": b"{}"}
    ]
    [fields] = await harness.queued()
    assert list(fields.items()) == list(message.items())
    await harness.check_ttls(job.job_id, 77, "job", "events")
    assert len(await harness.client.keys("*")) == 5  # those of the job, the queue, counts and index
    async with harness.unchanged():
        assert await harness.store.enqueue(job, "workers", 200) == (job.job_id, False)
        # Not even if the queue has become full meanwhile: the request was accepted.
        assert await harness.store.enqueue(job, "workers", 1) == (job.job_id, False)


async def test_jobs_queue_in_order_and_stop_exactly_at_the_limit(harness: StoreHarness) -> None:
    jobs = [new_job() for _ in range(150)]
    await asyncio.gather(*(harness.store.enqueue(job, "workers", 1000) for job in jobs))
    queued = [fields[b"job_id"].decode() for fields in await harness.queued()]
    assert queued == [job.job_id for job in jobs]
    outcomes = await asyncio.gather(
        *(harness.store.enqueue(new_job(), "workers", 157) for _ in range(30)),
        return_exceptions=True,
    )
    refusals = [outcome for outcome in outcomes if isinstance(outcome, QueueFull)]
    assert len(refusals) == 23
    assert {refusal.backlog for refusal in refusals} == {157}
    assert await harness.client.xlen(harness.keys.queue) == 157
    assert len(await harness.client.keys(harness.keys.job("*"))) == 314


def keyed(**changes: object) -> object:
    fields = {"idempotency_key": "k", "idempotency_ttl_s": 500, "fingerprint": "f1"}
    return new_job(**{**fields, **changes})


async def test_an_idempotency_key_creates_one_job(harness: StoreHarness) -> None:
    first = keyed()
    assert await harness.store.enqueue(first, "workers", 200) == (first.job_id, False)
    assert await harness.client.get(harness.keys.idempotency("k")) == first.job_id.encode()
    assert 490 < await harness.client.ttl(harness.keys.idempotency("k")) <= 500
    assert await harness.without_ttl() == []
    async with harness.unchanged():
        assert await harness.store.enqueue(keyed(), "workers", 200) == (first.job_id, True)
        assert await harness.store.enqueue(keyed(), "workers", 1) == (first.job_id, True)
        # The same call again is a lost reply, not a second request.
        assert await harness.store.enqueue(first, "workers", 200) == (first.job_id, False)
        with pytest.raises(IdempotencyConflict):
            await harness.store.enqueue(keyed(fingerprint="f2"), "workers", 200)
    # A third-party key without a fingerprint is replayed.
    await harness.client.set(harness.keys.idempotency("x"), "made-elsewhere", ex=60)
    foreign = keyed(idempotency_key="x")
    assert await harness.store.enqueue(foreign, "workers", 200) == ("made-elsewhere", True)
    # Of concurrent requests one creates a job.
    accepted = await asyncio.gather(
        *(harness.store.enqueue(keyed(idempotency_key="many"), "workers", 200) for _ in range(50))
    )
    assert len({job_id for job_id, _ in accepted}) == 1
    assert sum(not replayed for _, replayed in accepted) == 1
    assert await harness.client.xlen(harness.keys.queue) == 2


async def refused(harness: StoreHarness, limit: int) -> int:
    """The backlog with which a request is refused; checks that nothing was written (I9)."""
    async with harness.refuses(QueueFull) as caught:
        await harness.store.enqueue(keyed(idempotency_key="r", max_attempts=2), "workers", limit)
    return caught.value.backlog


async def accepted(harness: StoreHarness, limit: int) -> None:
    await harness.store.enqueue(new_job(), "workers", limit)


async def test_without_a_group_the_whole_stream_counts(harness: StoreHarness) -> None:
    assert await refused(harness, 0) == 0
    assert await harness.snapshot() == {}  # a refusal does not create the queue
    for _ in range(3):
        await accepted(harness, 3)
    assert await refused(harness, 3) == 3
    assert await refused(harness, 1) == 3
    await harness.client.xgroup_create(harness.keys.queue, "auditors", id="$")
    assert await refused(harness, 3) == 3  # another group does not count


#: Every value of acked, pending and waiting meets every value of the others.
PAIRS = [(0, 0, 0), (0, 1, 1), (0, 10, 10), (1, 0, 1), (1, 1, 10), (1, 10, 0)]
PAIRS += [(30, 0, 10), (30, 1, 0), (30, 10, 1)]


@pytest.mark.parametrize(("acked", "pending", "waiting"), PAIRS)
async def test_backlog_is_pending_plus_undelivered(
    harness: StoreHarness, acked: int, pending: int, waiting: int
) -> None:
    await harness.group()
    jobs = [new_job() for _ in range(acked + pending + waiting)]
    await asyncio.gather(*(harness.store.enqueue(job, "workers", 10**6) for job in jobs))
    taken = await harness.take(acked + pending) if acked + pending else []
    if acked:
        # Any of the delivered ones, not only the oldest.
        await harness.client.xack(harness.keys.queue, "workers", *taken[-acked:])
    backlog = pending + waiting
    if backlog:
        assert await refused(harness, backlog) == backlog
        assert await refused(harness, 1) == backlog
    await accepted(harness, backlog + 1)
    assert await refused(harness, backlog + 1) == backlog + 1


async def test_the_backlog_is_exact_after_deletion_and_trimming(harness: StoreHarness) -> None:
    await harness.group()
    await harness.post(6)
    first, _ = await harness.take(2)
    await harness.client.xack(harness.keys.queue, "workers", first)
    entries = [entry_id for entry_id, _ in await harness.client.xrange(harness.keys.queue)]
    await harness.client.xdel(harness.keys.queue, entries[3])
    if harness.backend.name == "redis-system":
        [group] = await harness.client.xinfo_groups(harness.keys.queue)
        assert group["lag"] is None
    assert await refused(harness, 4) == 4  # one pending, and three of four undelivered ones
    await accepted(harness, 5)
    await harness.client.delete(harness.keys.queue)
    await harness.group()
    await harness.post(80)
    taken = await harness.take(60)
    await harness.client.xack(harness.keys.queue, "workers", *taken[:50])
    removed = await harness.queue.trim()
    assert removed > 0 or not harness.backend.is_real  # fakeredis trims whole hundreds
    assert await refused(harness, 30) == 30
    await accepted(harness, 31)


# -- Rates and quotas -----------------------------------------------------------------------------


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
    async with harness.refuses(RateLimited) as refused:
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
async def test_the_state_is_the_next_time(harness: StoreHarness, rate_us: int, burst: int) -> None:
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


@pytest.mark.parametrize("state", ["", "soon", "-5", "nan", "inf", "9" * 30])
async def test_an_invalid_state_delays_by_a_burst(harness: StoreHarness, state: str) -> None:
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
    async with harness.refuses():
        await post(harness, limits(harness, HOUR_US, burst=2, max_jobs=2))


async def test_a_quota_counts_accepted_jobs(harness: StoreHarness) -> None:
    wanted = limits(harness, max_jobs=2)
    jobs = {(await post(harness, wanted)).job_id for _ in range(2)}
    assert await active(harness) == jobs
    # A job may be delayed for thirty days, be queued for thirty, and run for thirty.
    assert 3 * 2_591_000 < await harness.client.ttl(quota(harness)) <= 3 * 2_592_000
    async with harness.refuses(QuotaExceeded) as refused:
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


async def test_a_later_refusal_uses_up_nothing(harness: StoreHarness) -> None:
    wanted = limits(harness, HOUR_US, burst=2, max_jobs=1)
    await post(harness, None)
    async with harness.unchanged():
        with pytest.raises(QueueFull):
            await post(harness, wanted, backlog=1)
        with pytest.raises(ScheduleFull):
            await post(harness, wanted, delay_ms=1000, schedule_limit=0)
    await post(harness, wanted)
    async with harness.refuses(QuotaExceeded):
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

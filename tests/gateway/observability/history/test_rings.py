"""Ring buffers of samples: written once, by the holder of the lease, with a bounded length."""

from __future__ import annotations

import pytest

from common.contracts.stats import ONE_SECOND, TEN_SECONDS, Resolution
from common.errors import CorruptKey
from gateway.observability.history.rings import SamplerLease, WriteOutcome
from tests.support.gateway.history import LEASE, START, STATS, History, sample

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
    assert [each.ts for each in await after(TEN_SECONDS, START + 2000)] == [
        START + 3000,
        START + 4000,
    ]
    assert [each.ts for each in await after(TEN_SECONDS, 0, START + 1000)] == [START, START + 1000]
    assert [each.ts for each in await after(TEN_SECONDS, 0, count=2)] == [START, START + 1000]
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

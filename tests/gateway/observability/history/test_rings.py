"""The rings: each time once, by whoever has the place, and never longer than they may be."""

from __future__ import annotations

import pytest

from common.contracts.stats import ONE_SECOND, TEN_SECONDS, Resolution
from common.errors import CorruptKey
from gateway.observability.history.rings import SamplerLease, WriteOutcome
from tests.gateway.observability.history.kit import PLACE, START, STATS, History, sample
from tests.support.backends import Backend

OTHER = SamplerLease("other", 60_000)


async def test_only_one_has_the_place(history: History) -> None:
    rings = history.rings
    assert await rings.acquire(PLACE)
    assert not await rings.acquire(OTHER)
    assert await rings.append(ONE_SECOND, sample(START, done=1), OTHER) is WriteOutcome.LOST
    assert await history.stored() == []
    await rings.release(OTHER)
    assert not await rings.acquire(OTHER), "who has no place cannot give it away"
    await rings.release(PLACE)
    assert await rings.acquire(OTHER)


async def test_each_time_is_written_once(history: History) -> None:
    rings = history.rings
    await rings.acquire(PLACE)
    assert await rings.append(ONE_SECOND, sample(START, done=1), PLACE, "seen") is WriteOutcome.OK
    again = await rings.append(ONE_SECOND, sample(START, done=2), PLACE, "more")
    before = await rings.append(ONE_SECOND, sample(START - 1000, done=2), PLACE, "more")
    assert (again, before) == (WriteOutcome.TAKEN, WriteOutcome.TAKEN)
    [only] = await history.stored()
    assert only.encode() == sample(START, done=1).encode()
    assert await rings.seen() == b"seen", "what is not written is not seen"


async def test_a_sample_renews_the_place(history: History) -> None:
    await history.rings.acquire(PLACE._replace(ttl_ms=100))
    await history.rings.append(ONE_SECOND, sample(START), PLACE)
    assert await history.redis.pttl(STATS.sampler_lock) > 50_000


async def test_a_ring_is_never_longer(history: History) -> None:
    short = Resolution("1s", 1000, 5)
    await history.rings.acquire(PLACE)
    for second in range(8):
        await history.rings.append(short, sample(START + second * 1000), PLACE)
    assert [each.ts for each in await history.stored()] == [
        START + second * 1000 for second in range(3, 8)
    ]


async def test_samples_of_the_future_are_forgotten(history: History) -> None:
    kept = [sample(START + n * 1000, {2: n}, depth=n) for n in range(4)]
    await history.put([*kept, sample(START + 10**9, depth=9)])
    await history.rings.rewind(ONE_SECOND, OTHER, START + 60_000)
    assert len(await history.stored()) == 5, "not by anybody"
    await history.rings.acquire(PLACE)
    await history.rings.rewind(ONE_SECOND, PLACE, START + 60_000)
    assert [each.encode() for each in await history.stored()] == [each.encode() for each in kept]
    assert await history.rings.append(ONE_SECOND, sample(START + 4000), PLACE) is WriteOutcome.OK


async def test_reading_after_a_time(history: History) -> None:
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


async def test_what_is_no_ring_is_left_alone(history: History) -> None:
    await history.redis.set(STATS.ring(ONE_SECOND), "foreign")
    await history.rings.acquire(PLACE)
    with pytest.raises(CorruptKey):
        await history.rings.append(ONE_SECOND, sample(START), PLACE)
    assert await history.stored() == []
    assert await history.redis.get(STATS.ring(ONE_SECOND)) == b"foreign"


async def test_a_full_redis_still_takes_samples(real_backend: Backend) -> None:
    """Then everybody looks at them; and they are bounded."""
    history = History(real_backend)
    await history.rings.acquire(PLACE)
    await history.redis.config_set("maxmemory", "1")
    try:
        assert await history.rings.append(ONE_SECOND, sample(START), PLACE, "{}") is WriteOutcome.OK
    finally:
        await history.redis.config_set("maxmemory", "0")

"""Clients of partitions: which client serves which, queries about jobs, and merging of pages."""

from __future__ import annotations

import random
from typing import Any

import pytest

from common.contracts.jobs import JobKeys
from common.errors import StoreUnavailable
from common.jobs.pagination import MergedPages
from common.jobs.partition_clients import PartitionClient, PartitionClients, gather_partial
from common.jobs.partitioned_queue import DeadLetterId, parse_dead_letter_id
from common.redis.partitions import Partitions
from tests.support.backends import FAKE, Backend

BASE = JobKeys()


def ids_of(partitions: Partitions, number: int, count: int) -> list[str]:
    names = (f"job-{at}" for at in range(10_000))
    fitting = (name for name in names if partitions.number(name) == number)
    return [next(fitting) for _ in range(count)]


async def test_a_single_partition_has_one_client() -> None:
    lines = PartitionClients.connect(Partitions.create(BASE), "redis://localhost:1", connections=2)
    assert [(line.number, line.keys) for line in lines] == [(0, BASE)]
    assert lines.for_job("anything") is lines.home
    await lines.aclose()


@pytest.mark.parametrize("url", ["redis://localhost:1/0", "redis+sentinel://localhost:1/mymaster"])
async def test_partitions_on_one_server_share_a_client(url: str) -> None:
    lines = PartitionClients.connect(Partitions.create(BASE, 4), url, connections=2)
    assert len({id(line.client) for line in lines}) == 1
    assert [line.keys.tag for line in lines] == ["{0}:", "{1}:", "{2}:", "{3}:"]
    await lines.aclose()


async def test_on_a_cluster_each_partition_has_its_own_server() -> None:
    lines = PartitionClients.connect(
        Partitions.create(BASE, 4), "redis+cluster://localhost:1", connections=2
    )
    assert len({id(line.client) for line in lines}) == 4
    await lines.aclose()


async def test_replies_are_in_the_order_of_the_jobs() -> None:
    here, there = Backend(FAKE), Backend(FAKE)
    partitions = Partitions.create(BASE, 3)
    clients = [here.client(), here.client(), there.client()]
    clients[1] = clients[0]
    each = zip(range(3), partitions.keys, clients)
    lines = PartitionClients(partitions, tuple(PartitionClient(*terms) for terms in each))
    job_ids = [job_id for number in range(3) for job_id in ids_of(partitions, number, 5)]
    random.Random(1).shuffle(job_ids)
    for job_id in job_ids:
        line = lines.for_job(job_id)
        await line.client.hset(line.keys.job(job_id), "job_id", job_id)  # type: ignore[misc]

    def ask(pipe: Any, line: PartitionClient, job_id: str) -> None:
        pipe.hget(line.keys.job(job_id), "job_id")

    assert await lines.query_jobs(job_ids, ask) == [job_id.encode() for job_id in job_ids]
    assert await lines.query_jobs([], ask) == []
    gone = lines.for_job(ids_of(partitions, 2, 1)[0])
    gone.client.pipeline = _broken  # type: ignore[method-assign]
    found = await lines.query_jobs(job_ids, ask)
    for job_id, reply in zip(job_ids, found):
        away = partitions.number(job_id) == 2
        assert isinstance(reply, StoreUnavailable) if away else reply == job_id.encode()
    with pytest.raises(StoreUnavailable):
        await lines.query_jobs(ids_of(partitions, 2, 2), ask)
    await here.close()
    await there.close()


def _broken(*args: Any, **options: Any) -> Any:
    raise StoreUnavailable("away")


async def test_answers_and_errors() -> None:
    async def says(word: str) -> str:
        return word

    async def fails(error: Exception) -> str:
        raise error

    trouble = StoreUnavailable("away")
    assert await gather_partial(says("a"), fails(trouble), says("b")) == ["a", trouble, "b"]
    with pytest.raises(StoreUnavailable):
        await gather_partial(fails(trouble), fails(trouble))
    with pytest.raises(ZeroDivisionError):
        await gather_partial(says("a"), fails(ZeroDivisionError()))


class Pages:
    """Numbers in descending order, a few at a time, with an occasional empty page."""

    def __init__(self, numbers: list[int], rng: random.Random) -> None:
        self._numbers = sorted(numbers, reverse=True)
        self._rng = rng
        self.exhausted = False
        self.read = 0

    async def next(self) -> list[int]:
        assert not self.exhausted
        size = self._rng.randrange(4)
        page, self._numbers = self._numbers[:size], self._numbers[size:]
        self.exhausted = not self._numbers and self._rng.random() < 0.5
        self.read += len(page)
        return page


@pytest.mark.parametrize("seed", range(20))
async def test_merging_keeps_order_and_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    numbers = [[rng.randrange(40) for _ in range(rng.randrange(30))] for _ in range(5)]
    merged = MergedPages([Pages(each, rng) for each in numbers], key=lambda number: number)
    found: list[int] = []
    while not merged.exhausted:
        found += await merged.next()
    assert found == sorted((number for each in numbers for number in each), reverse=True)
    assert merged.last == (found[-1] if found else None)


async def test_no_more_pages_are_read_than_needed() -> None:
    rng = random.Random(1)
    sources = [Pages(list(range(start, 10_000, 10)), rng) for start in range(10)]
    merged = MergedPages(sources, key=lambda number: number)
    assert await merged.next()
    assert sum(source.read for source in sources) <= 3 * len(sources)


@pytest.mark.parametrize(
    ("text", "partitions", "name"),
    [
        ("1-2", 1, DeadLetterId(1, 2, 0)),
        ("1-2.0", 1, None),
        ("1-2", 4, None),
        ("1-2.3", 4, DeadLetterId(1, 2, 3)),
        ("01-02.03", 4, DeadLetterId(1, 2, 3)),
        ("1-2.4", 4, None),
        ("1-2.x", 4, None),
        ("1-2.+3", 4, None),
        ("1-2.٣", 4, None),
        ("1.3-2", 4, None),
        ("+", 4, None),
    ],
)
def test_ids_of_dead_letters(text: str, partitions: int, name: DeadLetterId | None) -> None:
    found = parse_dead_letter_id(text, partitions)
    assert found == name
    if found is not None:
        assert parse_dead_letter_id(found.format(partitions), partitions) == found

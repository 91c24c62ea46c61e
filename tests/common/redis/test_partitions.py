"""Partitions: to which one a job belongs, its key names, and its client."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import StoreUnavailable
from sluice.common.jobs.pagination import MergedPages
from sluice.common.jobs.partition_clients import PartitionClient, PartitionClients, gather_partial
from sluice.common.jobs.partitioned_queue import DeadLetterId, parse_dead_letter_id
from sluice.common.redis.partitions import Partitions
from sluice.common.settings.worker import WorkerSettings
from tests.support.servers import FAKE, Backend


def test_one_partition_has_plain_names_and_0_is_the_home() -> None:
    assert Partitions.create(JobKeys(), 1).keys == (JobKeys(),)
    assert WorkerSettings().keys == JobKeys()
    settings = WorkerSettings(queue_partitions=8)
    assert settings.partitions.count == 8
    assert settings.keys == settings.partitions.home == settings.partitions.keys[0]
    assert settings.keys.tag == "{0}:"


def test_every_key_of_a_partition_has_its_tag() -> None:
    keys = Partitions.create(JobKeys(), 4).keys[3]
    names = [
        keys.queue, keys.dead_letters, keys.job("x"), keys.events("x"), keys.lease("x"),
        keys.idempotency("k"), keys.idempotency("k", "t"), keys.fingerprint("k"),
        keys.fingerprint("k", "t"), keys.redriven("1-0"), keys.running("chat"), keys.scheduled,
        keys.control, keys.audit, keys.audit_lock, keys.workers, keys.worker("w"), keys.index,
        keys.counts, keys.hints, keys.probe,
    ]  # fmt: skip
    plain = JobKeys()
    assert all(name.startswith("{3}:") and name.count("{") == 1 for name in names)
    assert keys.job("x") == "{3}:" + plain.job("x")
    assert keys.queue == "{3}:" + plain.queue
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("job_id", "number"), [("00000000-0000-4000-8000-000000000000", 3), ("job", 0), ("{2}:", 2)]
)
def test_the_partition_of_an_id_is_part_of_the_contract(job_id: str, number: int) -> None:
    assert Partitions.create(JobKeys(), 4).number(job_id) == number


def test_jobs_are_spread_evenly() -> None:
    partitions = Partitions.create(JobKeys(), 8)
    found = Counter(partitions.number(str(uuid.UUID(int=n * 7919))) for n in range(8000))
    assert set(found) == set(range(8))
    assert min(found.values()) > 700


def test_an_id_is_drawn_until_it_fits_the_partition() -> None:
    partitions = Partitions.create(JobKeys(), 8)
    for number in range(8):
        job_id = partitions.draw_id(number, lambda: str(uuid.uuid4()))
        assert partitions.keys_for_job(job_id) is partitions.keys[number]


def test_a_queue_name_like_that_of_a_partition_is_refused() -> None:
    for name in ("{0}:jobs", "{12}:jobs:stream"):
        with pytest.raises(ValueError, match="name of a partition"):
            WorkerSettings(queue_stream_key=name)
    for name in ("{jobs}:stream", "jobs{0}:", "{}:x"):  # other braces are allowed
        assert WorkerSettings(queue_stream_key=name).keys.queue == name


# -- Clients of partitions: which client serves which, queries about jobs, and merging of pages ---


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


@pytest.mark.parametrize(
    ("url", "clients"),
    [
        ("redis://localhost:1/0", 1),
        ("redis+sentinel://localhost:1/mymaster", 1),
        ("redis+cluster://localhost:1", 4),
    ],
)
async def test_partitions_share_a_client_except_on_a_cluster(url: str, clients: int) -> None:
    lines = PartitionClients.connect(Partitions.create(BASE, 4), url, connections=2)
    assert len({id(line.client) for line in lines}) == clients
    assert [line.keys.tag for line in lines] == ["{0}:", "{1}:", "{2}:", "{3}:"]
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
        ("1-2.3", 4, DeadLetterId(1, 2, 3)),
        ("01-02.03", 4, DeadLetterId(1, 2, 3)),
        *((text, 4, None) for text in ("1-2", "1-2.4", "1-2.x", "1-2.+3", "1-2.٣", "1.3-2", "+")),
    ],
)
def test_ids_of_dead_letters(text: str, partitions: int, name: DeadLetterId | None) -> None:
    found = parse_dead_letter_id(text, partitions)
    assert found == name
    if found is not None:
        assert parse_dead_letter_id(found.format(partitions), partitions) == found

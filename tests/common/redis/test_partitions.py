"""Partitions: to which one a job belongs, and its key names."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from common.contracts.jobs import JobKeys
from common.redis.partitions import Partitions
from common.settings.worker import WorkerSettings


def test_a_single_partition_has_the_names_of_the_contract() -> None:
    assert Partitions.create(JobKeys(), 1).keys == (JobKeys(),)
    assert WorkerSettings().keys == JobKeys()


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


def test_the_home_is_partition_0() -> None:
    settings = WorkerSettings(queue_partitions=8)
    assert settings.partitions.count == 8
    assert settings.keys == settings.partitions.home == settings.partitions.keys[0]
    assert settings.keys.tag == "{0}:"


@pytest.mark.parametrize(
    ("job_id", "number"),
    [("00000000-0000-4000-8000-000000000000", 3), ("job", 0), ("{2}:", 2)],
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


@pytest.mark.parametrize("name", ["{0}:jobs", "{12}:jobs:stream"])
def test_a_queue_name_like_that_of_a_partition_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name of a partition"):
        WorkerSettings(queue_stream_key=name)


@pytest.mark.parametrize("name", ["{jobs}:stream", "jobs{0}:", "{}:x"])
def test_other_braces_are_allowed(name: str) -> None:
    assert WorkerSettings(queue_stream_key=name).keys.queue == name

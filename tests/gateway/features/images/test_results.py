"""The consumer of `image:result`: each result is persisted once after any failure."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sluice.common.aio import cancel
from sluice.common.contracts.images import storage_key
from sluice.common.errors import StoreUnavailable
from sluice.gateway.features.images.metrics import ResultOutcome
from sluice.gateway.features.images.result_consumer import (
    ConsumerTimings,
    ResultConsumer,
    consumer_name,
)
from tests.gateway.observability.metrics.test_metrics import scrape
from tests.support.gateway.faults import fail_first
from tests.support.gateway.images import KEYS, STAGES, STORED, UNKNOWN, Images
from tests.support.servers import Backend
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

GROUP = "api-workers"
QUICK = ConsumerTimings(
    idle_s=0.0, take_over_every_s=0.02, stale_s=0.05, forget_every_s=0.02, first_wait_s=0.01,
    longest_wait_s=0.02,
)  # fmt: skip

Consume = Callable[..., ResultConsumer]


def success(image_id: str, **changes: str) -> dict[Any, Any]:
    """A result as a third-party pipeline writes it."""
    stored = {"storage_key": storage_key(image_id), "sha256": hashlib.sha256(STORED).hexdigest()}
    stored |= {"etag": "abc123", "file_size": "245760", "content_type": "image/webp"}
    sizes = {"original_width": "4032", "original_height": "3024"}
    sizes |= {"processed_width": "1920", "processed_height": "1440"}
    ended = {"status": "processed", "processed_at": "2026-02-24T10:00:00Z"}
    return {"image_id": image_id, **stored, **sizes, **ended, **changes}


def failure(image_id: str) -> dict[Any, Any]:
    error = {"error_code": "VALIDATION_FAILED", "error_message": "file too large"}
    return {"image_id": image_id, "status": "failed", "failed_at": "2026-02-24T10:00:00Z", **error}


@pytest.fixture
async def consume(backend: Backend, images: Images) -> AsyncIterator[Consume]:
    """Starts consumers, and stops them."""
    tasks: list[asyncio.Task[None]] = []

    def start(name: str = "", pace: ConsumerTimings = QUICK, *, run: bool = True) -> ResultConsumer:
        wire = backend.wire(**({"block_s": 2.0} if backend.is_real else {}))
        consumer = ResultConsumer(wire, images.services.store, images.services.metrics, pace, name)
        if run:
            tasks.append(asyncio.create_task(consumer.run()))
        return consumer

    yield start
    await cancel(*tasks)


async def pending(images: Images) -> int:
    found: Any = await images.redis.xpending(KEYS.results, GROUP)
    return int(found["pending"])


async def settled(images: Images, count: int) -> None:
    """Wait until `count` results were counted and none is pending."""

    async def done() -> bool:
        counted = sum(images.services.metrics.results.values())
        return counted >= count and await pending(images) == 0

    await eventually(done)


async def test_results_of_a_third_party_pipeline_are_persisted(
    images: Images, consume: Consume
) -> None:
    assert consumer_name().startswith("api-")
    good, bad, deleted = [await images.uploaded() for _ in range(3)]
    stream = await images.watch(good)
    await stream.event("processing")
    await images.services.store.delete(deleted)
    entry = await images.redis.xadd(KEYS.results, success(good))  # before the first consumer
    consume()
    await images.redis.xadd(KEYS.results, failure(bad))
    await images.redis.xadd(KEYS.results, success(deleted))
    await settled(images, 3)
    assert (await stream.event("ready")).json()["file_size"] == 245760
    view = await images.view(good)
    assert (view["status"], view["stage"], view["progress"]) == ("processed", "done", 100)
    assert (view["file_size"], view["processed_width"], view["etag"]) == (245760, 1920, "abc123")
    assert view["processed_at"] == "2026-02-24T10:00:00Z"
    view = await images.view(bad)
    assert (view["status"], view["error_code"]) == ("failed", "VALIDATION_FAILED")
    record = await images.services.reader.record(good)
    assert record is not None
    assert record.result_entry_id == entry.decode()
    assert images.services.metrics.results[ResultOutcome.PERSISTED] == 2
    assert not await images.redis.exists(KEYS.record(deleted), KEYS.dead_results)


async def test_results_of_sluice_workers_are_already_known(
    images: Images, consume: Consume
) -> None:
    image_id = await images.uploaded()
    await images.advance(image_id, STAGES[0])
    await images.succeed(image_id)
    before = await images.view(image_id)
    consume()
    await settled(images, 1)
    assert await images.view(image_id) == before
    assert images.services.metrics.results == {ResultOutcome.KNOWN: 1}


async def test_several_consumers_share_the_results(images: Images, consume: Consume) -> None:
    for name in ("api-a-1", "api-b-2", "api-c-3"):
        consume(name, ConsumerTimings())
    for image_id in [await images.uploaded() for _ in range(15)]:
        await images.redis.xadd(KEYS.results, success(image_id))
    await settled(images, 15)
    assert images.services.metrics.results == {ResultOutcome.PERSISTED: 15}


INVALID: list[dict[Any, Any]] = [
    {"image_id": "x"},
    {"x": "y"},
    {**success(UNKNOWN), "more": "1"},
    success(UNKNOWN, file_size="many"),
    success(UNKNOWN, storage_key="../../etc/passwd"),
    success(UNKNOWN, status="done"),
    success("../x"),
    {b"\xff\xfe": b"\xff"},
    {f"field-{number}": "x" for number in range(9000)},
]


async def test_invalid_results_are_dead_lettered(images: Images, consume: Consume) -> None:
    image_id = await images.uploaded()
    consume()
    for fields in INVALID:
        await images.redis.xadd(KEYS.results, fields)
    await images.redis.xadd(KEYS.results, success(image_id))
    await settled(images, len(INVALID) + 1)
    assert (await images.view(image_id))["status"] == "processed"
    for fields, (_, dead) in zip(INVALID, await images.redis.xrange(KEYS.dead_results)):
        assert {b"dlq_reason", b"dlq_delivery_count", b"dlq_at"} <= set(dead)
        if len(fields) > 100:  # they do not all fit
            assert dead[b"field-0"] == b"x"
        elif b"\xff\xfe" not in fields:
            original = {name.encode(): value.encode() for name, value in fields.items()}
            assert original.items() <= dead.items()


async def test_a_failing_result_is_dead_lettered_after_ten_tries(
    images: Images, consume: Consume
) -> None:
    image_id, other = await images.uploaded(), await images.uploaded()
    await images.redis.delete(KEYS.record(image_id))
    await images.redis.set(KEYS.record(image_id), "no hash")
    consume()
    await images.redis.xadd(KEYS.results, success(image_id))
    await images.redis.xadd(KEYS.results, success(other))
    await eventually(lambda: images.services.metrics.results.get(ResultOutcome.PERSISTED))
    assert (await images.view(other))["status"] == "processed", "others are not blocked"
    await eventually(lambda: images.redis.xlen(KEYS.dead_results), 30)
    [(_, dead_letter)] = await images.redis.xrange(KEYS.dead_results)
    assert int(dead_letter[b"dlq_delivery_count"]) == 10
    assert dead_letter[b"image_id"].decode() == image_id
    assert await pending(images) == 0


async def test_a_transient_error_is_retried_without_limit(
    images: Images, consume: Consume, monkeypatch: Any
) -> None:
    image_id = await images.uploaded()
    errors = [StoreUnavailable("no Redis")] * 15
    left = fail_first(monkeypatch, images.services.store, "persist", *errors)
    consume()
    await images.redis.xadd(KEYS.results, success(image_id))
    await settled(images, 1)
    assert left == []
    assert (await images.view(image_id))["status"] == "processed"
    assert not await images.redis.exists(KEYS.dead_results)


async def read_by(images: Images, consumer: str, *ids: str) -> None:
    """Results of these images, read by a consumer that has not acknowledged them."""
    await images.redis.xgroup_create(KEYS.results, GROUP, "0", mkstream=True)
    for image_id in ids:
        await images.redis.xadd(KEYS.results, success(image_id))
    await images.redis.xreadgroup(GROUP, consumer, {KEYS.results: ">"})


async def test_results_of_a_dead_consumer_are_taken_over(images: Images, consume: Consume) -> None:
    ids = [await images.uploaded() for _ in range(3)]
    await read_by(images, "api-dead-1", *ids)
    await images.redis.xgroup_createconsumer(KEYS.results, GROUP, "follow-api-1")
    assert await pending(images) == 3
    consume("api-alive-2")
    await settled(images, 3)

    async def removed() -> bool:
        found = await images.redis.xinfo_consumers(KEYS.results, GROUP)
        return {each["name"] for each in found} == {b"api-alive-2", b"follow-api-1"}

    await eventually(removed)  # the dead consumer, but not that of a third party


async def test_pending_results_of_the_same_name_come_first(
    images: Images, consume: Consume
) -> None:
    """A restarted process with the same name finishes its pending results."""
    ids = [await images.uploaded() for _ in range(5)]
    await read_by(images, "api-me-1", *ids)
    consumer = consume("api-me-1", ConsumerTimings(), run=False)
    assert await consumer.run_once() == 5
    assert await pending(images) == 0


async def test_trimmed_results_are_acknowledged(images: Images, consume: Consume) -> None:
    image_id = await images.uploaded()
    await read_by(images, "api-dead-1", image_id)
    await images.redis.xtrim(KEYS.results, maxlen=0)
    consume("api-alive-2")
    await settled(images, 0)
    assert (await images.view(image_id))["status"] == "processing"  # a worker repairs it later


async def test_a_deleted_group_is_recreated(images: Images, consume: Consume) -> None:
    """A key of the wrong type is an operator's mistake; the consumer survives it."""
    await images.redis.set(KEYS.results, "no stream")
    consume()
    await asyncio.sleep(0.05)
    await images.redis.delete(KEYS.results)
    for number in range(3):
        if number == 1:
            await images.redis.xgroup_destroy(KEYS.results, GROUP)
        if number == 2:
            await images.redis.flushall()
        image_id = await images.uploaded()
        await images.redis.xadd(KEYS.results, success(image_id))

        async def is_processed(image_id: str = image_id) -> bool:
            return bool((await images.view(image_id))["status"] == "processed")

        await eventually(is_processed)


async def test_metrics_and_status_have_the_numbers(images: Images, consume: Consume) -> None:
    image_id = await images.uploaded()
    found = await scrape(images.gateway)
    assert found.value("gw_images_inflight") == 1
    assert found.value("gw_image_results_dlq_depth") == 0
    assert found.value("gw_image_uploads_total", outcome="accepted") == 1
    assert found.value("gw_image_uploads_total", outcome="conflict") == 0
    assert found.value("gw_image_upload_bytes_total") > 0
    consume(pace=ConsumerTimings())
    await images.redis.xadd(KEYS.results, success(image_id))
    await images.redis.xadd(KEYS.results, {"x": "y"})
    await settled(images, 2)
    stream = await images.watch(await images.uploaded())
    await stream.event("processing")
    found = await scrape(images.gateway)
    assert found.value("gw_image_results_total", outcome="persisted") == 1
    assert found.value("gw_image_results_total", outcome="dead") == 1
    assert found.value("gw_image_results_dlq_depth") == 1
    assert found.value("gw_image_results_pending") == 0
    assert found.value("gw_image_sse_clients") == found.value("gw_sse_clients") == 1
    [check] = (await images.client.get("/v1/status")).json()["checks"]["images"]
    assert (check["status"], check["dead_results"], check["inflight"]) == ("warn", 1, 1)
    assert "image:result:dlq" in check["output"]

"""The consumer of `image:result`: each result is persisted once, whatever fails."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from common.aio import cancel
from common.contracts.images import storage_key
from common.errors import CorruptKey, StoreUnavailable
from gateway.features.images.metrics import ResultOutcome
from gateway.features.images.result_consumer import ConsumerTimings, ResultConsumer, consumer_name
from tests.conftest import eventually
from tests.gateway.features.images.kit import KEYS, STAGES, STORED, Images
from tests.gateway.observability.metrics.test_metrics import scrape
from tests.support.backends import Backend

GROUP = "api-workers"
QUICK = ConsumerTimings(
    idle_s=0.0, take_over_every_s=0.02, stale_s=0.05, forget_every_s=0.02, first_wait_s=0.01,
    longest_wait_s=0.02,
)  # fmt: skip

Consume = Callable[..., ResultConsumer]


def success(image_id: str, **changes: str) -> dict[Any, Any]:
    """A result as a third-party pipeline writes it."""
    fields = {
        "image_id": image_id,
        "status": "processed",
        "storage_key": storage_key(image_id),
        "sha256": hashlib.sha256(STORED).hexdigest(),
        "etag": "abc123",
        "file_size": "245760",
        "content_type": "image/webp",
        "original_width": "4032",
        "original_height": "3024",
        "processed_width": "1920",
        "processed_height": "1440",
        "processed_at": "2026-02-24T10:00:00Z",
    }
    return {**fields, **changes}


def failure(image_id: str) -> dict[Any, Any]:
    return {
        "image_id": image_id,
        "status": "failed",
        "error_code": "VALIDATION_FAILED",
        "error_message": "file too large",
        "failed_at": "2026-02-24T10:00:00Z",
    }


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


def test_the_consumer_name_has_a_prefix() -> None:
    assert consumer_name().startswith("api-")


async def test_results_of_a_third_party_pipeline_are_persisted(
    images: Images, consume: Consume
) -> None:
    good, bad = await images.uploaded(), await images.uploaded()
    consume()
    entry = await images.redis.xadd(KEYS.results, success(good))
    await images.redis.xadd(KEYS.results, failure(bad))
    await settled(images, 2)
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


async def test_open_streams_get_the_result(images: Images, consume: Consume) -> None:
    image_id = await images.uploaded()
    stream = await images.watch(image_id)
    await stream.event("processing")
    consume()
    await images.redis.xadd(KEYS.results, success(image_id))
    assert (await stream.event("ready")).json()["file_size"] == 245760


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


async def test_results_before_the_first_consumer_are_read(images: Images, consume: Consume) -> None:
    ids = [await images.uploaded() for _ in range(40)]
    for image_id in ids:
        await images.redis.xadd(KEYS.results, success(image_id))
    consume()
    await settled(images, 40)
    assert {(await images.view(image_id))["status"] for image_id in ids} == {"processed"}


async def test_several_consumers_share_the_results(images: Images, consume: Consume) -> None:
    for name in ("api-a-1", "api-b-2", "api-c-3"):
        consume(name, ConsumerTimings())
    ids = [await images.uploaded() for _ in range(60)]
    for image_id in ids:
        await images.redis.xadd(KEYS.results, success(image_id))
    await settled(images, 60)
    assert images.services.metrics.results == {ResultOutcome.PERSISTED: 60}


async def test_the_result_of_a_deleted_image_is_ignored(images: Images, consume: Consume) -> None:
    image_id = await images.create()
    await images.services.store.delete(image_id)
    consume()
    await images.redis.xadd(KEYS.results, success(image_id))
    await settled(images, 1)
    assert not await images.redis.exists(KEYS.record(image_id))
    assert not await images.redis.exists(KEYS.dead_results)


@pytest.mark.parametrize(
    "fields",
    [
        {"image_id": "x"},
        {"x": "y"},
        {**success("6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"), "more": "1"},
        success("6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e", file_size="many"),
        success("6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e", storage_key="../../etc/passwd"),
        success("6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e", status="done"),
        success("../x"),
        {b"\xff\xfe": b"\xff"},
    ],
)
async def test_an_invalid_result_is_dead_lettered(
    images: Images, consume: Consume, fields: dict[Any, Any]
) -> None:
    image_id = await images.uploaded()
    consume()
    await images.redis.xadd(KEYS.results, fields)
    await images.redis.xadd(KEYS.results, success(image_id))
    await settled(images, 2)
    assert (await images.view(image_id))["status"] == "processed"
    [(_, dead_letter)] = await images.redis.xrange(KEYS.dead_results)
    assert {b"dlq_reason", b"dlq_delivery_count", b"dlq_at"} <= set(dead_letter)
    if b"\xff\xfe" not in fields:
        original = {name.encode(): value.encode() for name, value in fields.items()}
        assert original.items() <= dead_letter.items()


async def test_a_result_with_too_many_fields_is_dead_lettered(
    images: Images, consume: Consume
) -> None:
    image_id = await images.uploaded()
    consume()
    fields: dict[Any, Any] = {f"field-{number}": "x" for number in range(9000)}
    await images.redis.xadd(KEYS.results, fields)
    await images.redis.xadd(KEYS.results, success(image_id))
    await settled(images, 2)
    assert (await images.view(image_id))["status"] == "processed"
    [(_, dead_letter)] = await images.redis.xrange(KEYS.dead_results)
    assert dead_letter[b"dlq_reason"] == b"invalid status"
    assert dead_letter[b"field-0"] == b"x"


async def test_a_failing_result_is_dead_lettered_after_ten_tries(
    images: Images, consume: Consume
) -> None:
    image_id = await images.uploaded()
    await images.redis.delete(KEYS.record(image_id))
    await images.redis.set(KEYS.record(image_id), "no hash")
    consume()
    await images.redis.xadd(KEYS.results, success(image_id))
    await eventually(lambda: images.redis.xlen(KEYS.dead_results), 30)
    [(_, dead_letter)] = await images.redis.xrange(KEYS.dead_results)
    assert int(dead_letter[b"dlq_delivery_count"]) == 10
    assert dead_letter[b"image_id"].decode() == image_id
    assert await pending(images) == 0


async def test_a_transient_error_is_retried_without_limit(
    images: Images, consume: Consume, monkeypatch: Any
) -> None:
    image_id = await images.uploaded()
    persist = images.services.store.persist
    tries = 0

    async def away(*args: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries <= 15:
            raise StoreUnavailable("no Redis")
        return await persist(*args)

    monkeypatch.setattr(images.services.store, "persist", away)
    consume()
    await images.redis.xadd(KEYS.results, success(image_id))
    await settled(images, 1)
    assert tries == 16
    assert (await images.view(image_id))["status"] == "processed"
    assert not await images.redis.exists(KEYS.dead_results)


async def test_a_failing_result_does_not_block_others(
    images: Images, consume: Consume, monkeypatch: Any
) -> None:
    ids = [await images.uploaded() for _ in range(5)]
    persist = images.services.store.persist

    async def poisoned(entry_id: str, fields: Any, group: str) -> Any:
        if fields["image_id"] == ids[0]:
            raise CorruptKey("no hash")
        return await persist(entry_id, fields, group)

    monkeypatch.setattr(images.services.store, "persist", poisoned)
    consume(pace=ConsumerTimings())
    for image_id in ids:
        await images.redis.xadd(KEYS.results, success(image_id))
    await eventually(lambda: sum(images.services.metrics.results.values()) == 4)
    assert await pending(images) == 1


async def test_results_of_a_dead_consumer_are_taken_over(images: Images, consume: Consume) -> None:
    ids = [await images.uploaded() for _ in range(3)]
    await images.redis.xgroup_create(KEYS.results, GROUP, "0", mkstream=True)
    for image_id in ids:
        await images.redis.xadd(KEYS.results, success(image_id))
    await images.redis.xreadgroup(GROUP, "api-dead-1", {KEYS.results: ">"})
    assert await pending(images) == 3
    consume("api-alive-2")
    await settled(images, 3)

    async def only_one() -> bool:
        found = await images.redis.xinfo_consumers(KEYS.results, GROUP)
        return [each["name"] for each in found] == [b"api-alive-2"]

    await eventually(only_one)  # the dead consumer is removed


async def test_consumers_of_third_parties_are_not_removed(images: Images, consume: Consume) -> None:
    await images.redis.xgroup_create(KEYS.results, GROUP, "0", mkstream=True)
    await images.redis.xgroup_createconsumer(KEYS.results, GROUP, "follow-api-1")
    await images.redis.xgroup_createconsumer(KEYS.results, GROUP, "api-idle-1")
    consume("api-alive-2")

    async def is_removed() -> bool:
        found = await images.redis.xinfo_consumers(KEYS.results, GROUP)
        return {each["name"] for each in found} == {b"api-alive-2", b"follow-api-1"}

    await eventually(is_removed)


async def test_pending_results_of_the_same_name_come_first(
    images: Images, consume: Consume
) -> None:
    """A restarted process with the same name finishes its pending results."""
    ids = [await images.uploaded() for _ in range(20)]
    await images.redis.xgroup_create(KEYS.results, GROUP, "0", mkstream=True)
    for image_id in ids:
        await images.redis.xadd(KEYS.results, success(image_id))
    await images.redis.xreadgroup(GROUP, "api-me-1", {KEYS.results: ">"})
    consumer = consume("api-me-1", ConsumerTimings(), run=False)
    assert await consumer.run_once() == 20
    assert await pending(images) == 0


async def test_trimmed_results_are_acknowledged(images: Images, consume: Consume) -> None:
    image_id = await images.uploaded()
    await images.redis.xgroup_create(KEYS.results, GROUP, "0", mkstream=True)
    await images.redis.xadd(KEYS.results, success(image_id))
    await images.redis.xreadgroup(GROUP, "api-dead-1", {KEYS.results: ">"})
    await images.redis.xtrim(KEYS.results, maxlen=0)
    consume("api-alive-2")

    async def none_left() -> bool:
        return await pending(images) == 0

    await eventually(none_left)
    assert (await images.view(image_id))["status"] == "processing"  # a worker repairs it later


async def test_a_deleted_group_is_recreated(images: Images, consume: Consume) -> None:
    consume()
    first = await images.uploaded()
    await images.redis.xadd(KEYS.results, success(first))
    await settled(images, 1)
    await images.redis.xgroup_destroy(KEYS.results, GROUP)
    second = await images.uploaded()
    await images.redis.xadd(KEYS.results, success(second))

    async def is_processed() -> bool:
        return bool((await images.view(second))["status"] == "processed")

    await eventually(is_processed)
    await images.redis.flushall()
    third = await images.uploaded()
    await images.redis.xadd(KEYS.results, success(third))

    async def third_is_processed() -> bool:
        return bool((await images.view(third))["status"] == "processed")

    await eventually(third_is_processed)


async def test_a_stream_of_another_type_is_survived(images: Images, consume: Consume) -> None:
    """A key of the wrong type is an operator's mistake; the consumer survives it."""
    await images.redis.set(KEYS.results, "no stream")
    consume()
    await asyncio.sleep(0.05)
    await images.redis.delete(KEYS.results)
    image_id = await images.uploaded()
    await images.redis.xadd(KEYS.results, success(image_id))

    async def is_processed() -> bool:
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

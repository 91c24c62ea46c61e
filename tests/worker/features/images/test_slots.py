"""Images do not take the slots of other jobs or workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common import codec
from tests.conftest import eventually
from tests.worker.features.images import process_stubs
from tests.worker.features.images.kit import ImageMaker, image_settings, photo, registry_of
from worker.features.images import processor
from worker.handlers import echo
from worker.queue.messages import Message, limit_key_of


def test_jobs_are_counted_by_task_or_internal_tool() -> None:
    assert limit_key_of("chat", b'{"tool":"image.process"}') == "chat"
    assert limit_key_of("tool", b'{"tool":"image.process","args":{}}') == "image.process"
    assert limit_key_of("tool", b'{"args":{},"tool":"image.process"}') == "image.process"
    assert limit_key_of("tool", b'{"tool":"calculator","args":{"text":"image.process"}}') == "tool"
    assert limit_key_of("tool", b"image.process") == "tool"
    assert limit_key_of("tool", b"") == "tool"


async def test_many_images_leave_slots_for_other_jobs(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(processor, "process", process_stubs.wait_for_go)
    registry = registry_of(image_settings(tmp_path))
    echo.register(registry)
    rig = await imagers(registry=registry, rig={"max_inflight": 6})
    ids = [await rig.upload(photo()) for _ in range(12)]

    async def eight_wait() -> bool:
        return (await rig.consumer.wait_queue._wait_queues.count()).get("image.process") == 8

    await eventually(eight_wait)
    assert rig.consumer.slots.busy == 4  # two with a process, two in addition
    reading = rig.telling["images"]()
    assert (reading.places, reading.busy) == (2, 2)
    [chat] = await rig.post(task="chat")
    assert await rig.settled(chat) == b"done"
    # A waiting job can be canceled and does not run.
    last = await rig.record(ids[-1])
    await rig.cancel(last.job_id)
    (rig.home / "go").touch()
    for image_id in ids[:-1]:
        assert (await rig.image_ended(image_id)).status.value == "processed"
    await rig.service.reconciler.run_once()
    await rig.failed(ids[-1], "CANCELED")
    assert await rig.pending() == 0


async def test_a_worker_with_a_free_slot_takes_the_next_image(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch, worker: Any
) -> None:
    monkeypatch.setattr(processor, "process", process_stubs.wait_for_go)
    rig = await imagers(rig={"max_inflight": 16})
    ids = [await rig.upload(photo()) for _ in range(8)]

    async def four_wait() -> bool:
        return (await rig.consumer.wait_queue._wait_queues.count()).get("image.process") == 4

    await eventually(four_wait)
    other = await imagers(identity=worker._replace(consumer="c2"), rig={"max_inflight": 16})
    await eventually(lambda: other.consumer.slots.busy == 4)
    (rig.home / "go").touch()
    await asyncio.gather(*(rig.image_ended(image_id) for image_id in ids))
    assert rig.service.counters.processed + other.service.counters.processed == 8
    assert other.service.counters.processed >= 4


async def test_a_limit_of_the_task_tool_counts_for_images_too(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "process", process_stubs.wait_for_go)
    rig = await imagers(rig={"max_inflight": 16, "task_limits": {"tool": 1}})
    ids = [await rig.upload(photo()) for _ in range(3)]

    async def two_wait() -> bool:
        return (await rig.consumer.wait_queue._wait_queues.count()).get("image.process") == 2

    await eventually(two_wait)
    assert rig.consumer.slots.busy == 1
    (rig.home / "go").touch()
    for image_id in ids:
        assert (await rig.image_ended(image_id)).status.value == "processed"


async def test_a_limit_across_workers_counts_for_images_too(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "process", process_stubs.wait_for_go)
    rig = await imagers(rig={"max_inflight": 16, "task_limits_global": {"tool": 1}})
    ids = [await rig.upload(photo()) for _ in range(3)]

    async def two_wait() -> bool:
        return (await rig.consumer.wait_queue._wait_queues.count()).get("image.process") == 2

    await eventually(two_wait)
    (rig.home / "go").touch()
    for image_id in ids:
        assert (await rig.image_ended(image_id)).status.value == "processed"


def test_a_payload_is_parsed_once_per_message(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse = codec.parse_payload
    monkeypatch.setattr(codec, "parse_payload", lambda raw: parsed.append(raw) or parse(raw))
    payload = b'{"tool":"image.process","args":{}}'
    message = Message.read("1-0", {b"job_id": b"j", b"task": b"tool", b"payload": payload})
    assert [message.limit_key, message.limit_key] == ["image.process"] * 2
    assert message.without_payload().limit_key == "image.process"
    assert parsed == [payload]

"""Event streams of images: the current state, then every change, until the end."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.common.contracts.images import STAGE_PROGRESS, Stage
from sluice.gateway.features.images import hub as stages
from tests.support.gateway.faults import fail_first, record_calls
from tests.support.gateway.harness import check_problem, settle
from tests.support.gateway.images import IMAGES, KEYS, STAGES, STORED, UNKNOWN, Images
from tests.support.gateway.sse import Block

pytestmark = pytest.mark.fakeredis_only


def state_of(block: Block | None) -> tuple[str | None, str, int]:
    assert block is not None
    data = block.json()
    return block.event, data["stage"], data["progress"]


async def test_every_stage_is_sent_in_order(images: Images) -> None:
    image_id = await images.uploaded()
    stream = await images.watch(image_id)
    hello = await stream.block()
    assert (hello.event, hello.retry) == ("hello", "1000")
    assert hello.json()["data"]["image_id"] == image_id
    first = await stream.block()
    assert state_of(first) == ("processing", "queued", 0)
    assert set(first.json()) == {"image_id", "stage", "progress", "updated_at"}
    for stage in STAGES:
        await images.advance(image_id, stage)
        expected = ("processing", stage.value, int(STAGE_PROGRESS[stage]))
        assert state_of(await stream.next()) == expected
    await images.succeed(image_id)
    last = await stream.block()
    assert state_of(last) == ("ready", "done", 100)
    data = last.json()
    assert (data["processed_width"], data["processed_height"]) == (1920, 1440)
    assert (data["original_width"], data["original_height"]) == (4032, 3024)
    assert (data["file_size"], data["content_type"]) == (len(STORED), "image/webp")
    assert data["content_url"] == f"{IMAGES}/{image_id}/content"
    assert await stream.next() is None


async def test_a_late_client_gets_the_final_event_then_204(images: Images) -> None:
    image_id, done = await images.uploaded(), await images.uploaded()
    await images.fail(image_id)
    await images.succeed(done)
    for stored in (True, False):
        _, ready = await (await images.watch(done)).rest()
        assert state_of(ready) == ("ready", "done", 100)
        _, failed = await (await images.watch(image_id)).rest()
        assert state_of(failed) == ("failed", "failed", -1)
        data = failed.json()
        assert (data["error"], data["error_code"]) == ("file too large", "VALIDATION_FAILED")
        assert failed.id
        target = f"{IMAGES}/{image_id}/events"
        for query, headers in (
            (f"?last_event_id={failed.id}", {}),
            ("", {"last-event-id": failed.id}),
        ):
            answer = await images.client.get(target + query, headers)
            assert (answer.status, answer.body) == (204, b"")
        if stored:
            await images.redis.delete(KEYS.status(image_id), KEYS.status(done))
    # After a reopen, more events follow.
    await images.client.send("POST", f"{IMAGES}/{image_id}/retry-upload")
    again = await images.watch(image_id, last_event_id=failed.id)
    await again.next()
    assert state_of(await again.next()) == ("processing", "queued", 0)


async def test_a_resumed_stream_does_not_repeat_the_known_state(images: Images) -> None:
    image_id = await images.uploaded()
    await images.advance(image_id, Stage.DECODING)
    stream = await images.watch(image_id)
    await stream.next()
    known = await stream.block()
    assert known.id
    resumed = await images.watch(image_id, last_event_id=known.id)
    await resumed.next()
    await images.advance(image_id, Stage.ENCODING)
    assert state_of(await resumed.next()) == ("processing", "encoding", 75)
    unknown_id = await images.watch(image_id, last_event_id="whatever")
    await unknown_id.next()
    assert state_of(await unknown_id.next()) == ("processing", "encoding", 75)


# -- third-party pipelines -------------------------------------------------------------------------


async def write_status(images: Images, image_id: str, **fields: str) -> None:
    """Write the status as a third-party pipeline does, without a hint."""
    await images.redis.hset(KEYS.status(image_id), mapping=fields)


async def test_stages_written_without_a_hint_are_sent(images: Images) -> None:
    image_id = await images.uploaded()
    stream = await images.watch(image_id)
    await stream.next()
    assert state_of(await stream.next()) == ("processing", "queued", 0)
    at = "2030-01-01T00:00:00Z"
    for stage, progress in (("validating", "10"), ("validating", "31"), ("encoding", "75")):
        await write_status(images, image_id, updated_at=at)  # a newer time alone is not sent
        await images.redis.publish(images.gateway.keys.hints, KEYS.status(image_id))
        await write_status(images, image_id, stage=stage, progress=progress, updated_at=at)
        assert state_of(await stream.next()) == ("processing", stage, int(progress))


async def test_ready_is_sent_only_after_the_record_is_complete(
    images: Images, monkeypatch: Any
) -> None:
    monkeypatch.setattr(stages, "RECORDS_EVERY_S", 0.05)
    image_id, only_recorded = await images.uploaded(), await images.uploaded()
    stream = await images.watch(image_id)
    await stream.event("processing")
    at = "2030-01-01T00:00:00Z"
    await write_status(images, image_id, stage="encoding", progress="75", updated_at=at)
    assert state_of(await stream.next()) == ("processing", "encoding", 75)
    await write_status(images, image_id, stage="done", progress="100", updated_at=at)
    late = await images.watch(image_id)
    await late.next()
    assert state_of(await late.next()) == ("processing", "uploading", 90)
    await images.succeed(image_id)
    for each in (stream, late):
        assert state_of(await each.next()) == ("ready", "done", 100)
        assert await each.next() is None
    # As if a pipeline had written its result to the result stream only.
    stream = await images.watch(only_recorded)
    await stream.event("processing")
    await images.succeed(only_recorded)
    await write_status(images, only_recorded, stage="uploading", progress="90")
    assert (await stream.event("ready")).json()["stage"] == "done"


async def test_an_invalid_progress_is_tolerated(images: Images) -> None:
    image_id = await images.uploaded()
    for progress in ("", "x", "-7", "1000"):
        odd = {"stage": "a new stage", "progress": progress, "updated_at": "whenever"}
        await write_status(images, image_id, **odd)
        block = await (await images.watch(image_id)).event("processing")
        assert 0 <= block.json()["progress"] <= 100


# -- many ----------------------------------------------------------------------------------------


async def test_one_stream_has_many_images(images: Images) -> None:
    ids = [await images.uploaded() for _ in range(3)]
    stream = await images.watch_many(ids)
    hello = await stream.block()
    assert hello.json()["data"]["image_ids"] == ids
    blocks = [await stream.block() for _ in ids]
    assert [block.json()["image_id"] for block in blocks] == ids
    resumed = await images.watch_many(ids, last_event_id=blocks[-1].id or "")
    await resumed.next()
    await images.advance(ids[0], Stage.DECODING)
    for each in (resumed, stream):
        assert state_of(await each.next()) == ("processing", "decoding", 30)
    await images.succeed(ids[1])
    _, ready = await (await images.watch(ids[1])).rest()
    assert (await stream.block()).json() == ready.json()
    await images.fail(ids[0])
    assert state_of(await stream.next()) == ("failed", "failed", -1)
    await images.succeed(ids[2])
    last = await stream.block()
    assert (last.event, last.json()["image_id"]) == ("ready", ids[2])
    assert await stream.next() is None
    assert last.id
    assert (await images.watch_many(ids, last_event_id=last.id)).status == 204
    assert (await images.watch_many(ids[::-1], last_event_id=last.id)).status == 200


async def test_unknown_and_deleted_images_are_reported_as_gone(images: Images) -> None:
    image_id, deleted = await images.uploaded(), await images.uploaded()
    stream = await images.watch_many([UNKNOWN, image_id, "x", image_id, deleted])
    await stream.next()
    blocks = [await stream.block() for _ in range(4)]
    assert [block.event for block in blocks] == ["gone", "processing", "gone", "processing"]
    assert blocks[0].json()["data"]["image_id"] == UNKNOWN
    assert blocks[0].id is None
    await images.client.send("DELETE", f"{IMAGES}/{deleted}")
    gone = await stream.block()
    assert (gone.event, gone.json()["data"]["image_id"]) == ("gone", deleted)
    await images.succeed(image_id)
    assert [block.event for block in await stream.rest()] == ["ready"]
    for target in (f"events?image_ids={UNKNOWN},x", f"{UNKNOWN}/events", "x/events"):
        check_problem(await images.client.get(f"{IMAGES}/{target}"), 404, "image_not_found")


async def test_the_number_of_images_is_limited(images: Images) -> None:
    many = ",".join(map(str, range(101)))
    for query in ("", "?image_ids=", "?image_ids=,,", f"?image_ids={many}"):
        answer = await images.client.get(f"{IMAGES}/events{query}")
        check_problem(answer, 422, "invalid_request")
    ids = [await images.create() for _ in range(100)]
    stream = await images.watch_many(ids)
    await stream.next()
    assert [(await stream.block()).json()["image_id"] for _ in ids] == ids
    assert images.services.hub.clients == 1


# -- streams ---------------------------------------------------------------------------------------


async def test_a_slow_client_gets_the_latest_state(images: Images) -> None:
    image_id = await images.uploaded()
    slow, fast = await images.watch(image_id), await images.watch(image_id)
    await slow.event("processing")
    await fast.event("processing")
    slow.take.clear()
    for stage in STAGES:
        await images.advance(image_id, stage)
        assert state_of(await fast.next())[1] == stage.value
    await slow.held_up.wait()
    await images.succeed(image_id)
    assert [block.event for block in await fast.rest()] == ["ready"]
    slow.take.set()
    received = [state_of(block)[1] for block in await slow.rest()]
    assert received == ["validating", "done"]


async def test_a_client_that_disconnects_is_removed(images: Images) -> None:
    ids = [await images.uploaded() for _ in range(2)]
    opened = [await images.watch(ids[0]), await images.watch_many(ids)]
    for stream in opened:
        await stream.event("processing")
    hub = images.services.hub
    assert (hub.clients, set(hub._subscribers_by_image)) == (2, set(ids))
    for stream in opened:
        await stream.hang_up()
    assert (hub.clients, hub._subscribers_by_image, hub._versions, hub._dirty) == (0, {}, {}, {})


async def test_a_stream_survives_an_unreachable_redis(images: Images, monkeypatch: Any) -> None:
    image_id = await images.uploaded()
    stream = await images.watch(image_id)
    await stream.event("processing")
    errors = [ConnectionError("no Redis")] * 2
    left = fail_first(monkeypatch, images.services.reader, "progress", *errors)
    await images.advance(image_id, Stage.ENCODING)
    assert state_of(await stream.next()) == ("processing", "encoding", 75)
    assert left == []


async def test_without_clients_redis_is_not_read(images: Images, monkeypatch: Any) -> None:
    image_id = await images.uploaded()
    stream = await images.watch(image_id)
    await images.succeed(image_id)
    await stream.rest()
    reads = record_calls(monkeypatch, images.services.reader, "progress")
    monkeypatch.setattr(stages, "MIN_POLL_S", 0.0)
    for _ in range(5):
        await images.redis.publish(images.gateway.keys.hints, KEYS.status(image_id))
        await settle()
    assert reads == []

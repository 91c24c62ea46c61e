"""Every operation: states that do not allow it, lost replies, corrupt keys, too little memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluice.common.contracts.images import Stage
from sluice.common.errors import StoreUnavailable
from sluice.common.features.images.types import ImageAnswer, ImageOutcome, ProcessingAttempt
from sluice.common.redis.scripts import Record, Reply
from tests.support.store.images import (
    ADMISSION,
    ALREADY,
    CONFLICT,
    GROUP,
    HOLD_MS,
    LOST,
    MISSING,
    OK,
    ImageHarness,
    fresh_upload,
    new_image,
    result_fields,
    uploaded,
)

Call = Callable[[ImageHarness, ProcessingAttempt], Awaitable[Any]]


async def persist(images: ImageHarness, held: ProcessingAttempt) -> ImageOutcome:
    return await images.store.persist("9999999999999-0", result_fields(held.image_id), GROUP)


#: Operations on an image in processing, on one being uploaded, and on a failed one.
WORKING: dict[str, Call] = {
    "advance": lambda images, held: images.store.advance(held, Stage.DECODING),
    "succeed": lambda images, held: images.succeed(held),
    "fail": lambda images, held: images.fail(held),
    "repair": lambda images, held: images.store.repair(
        held.image_id, held.upload_id, result_fields(held.image_id)
    ),
    "persist": persist,
    "delete": lambda images, held: images.store.delete(held.image_id),
}
UPLOADING: dict[str, Call] = {
    "claim": lambda images, held: images.store.claim(held.image_id, held.upload_id, HOLD_MS),
    "hold": lambda images, held: images.store.extend_claim(held.image_id, held.upload_id, HOLD_MS),
    "release": lambda images, held: images.store.release(held.image_id, held.upload_id),
    "submit": lambda images, held: images.store.submit(
        uploaded(held.image_id, held.upload_id), ADMISSION
    ),
}
FAILED: dict[str, Call] = {"reopen": lambda images, held: images.store.reopen(held.image_id)}
CALLS = {**WORKING, **UPLOADING, **FAILED}


async def ready_for(images: ImageHarness, call: str) -> ProcessingAttempt:
    """An image in the state that the call needs."""
    if call in UPLOADING:
        image_id = await images.create(tenant="acme")
        return ProcessingAttempt(image_id, await images.claim(image_id))
    if call in FAILED:
        return await images.failed(tenant="acme")
    return await images.processing(tenant="acme")


def keys_of(images: ImageHarness, image_id: str, call: str) -> list[str]:
    keys = images.keys
    names = [keys.record(image_id), keys.status(image_id), keys.upload(image_id)]
    names += [keys.inflight, keys.results]
    if call == "delete":
        names += [keys.index(), keys.index("acme"), keys.deleted(image_id)]
    if call == "submit":
        names.append(images.jobs.queue)
    return names


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_repeated_after_a_lost_reply_changes_nothing(
    images: ImageHarness, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await ready_for(images, call)
    send = images.batcher.call

    async def stored() -> list[Any]:
        """Everything in Redis except the deadline of the upload, which every call extends."""
        await images.client.hdel(images.keys.record(held.image_id), "upload_deadline_ms")
        return sorted((await images.snapshot()).items())

    async def send_twice(record: Record) -> Reply:
        await send(record)
        before = await stored()
        reply = await send(record)
        assert await stored() == before
        return reply

    first = await CALLS[call](images, await ready_for(images, call))
    assert first.answer is OK
    monkeypatch.setattr(images.batcher, "call", send_twice)
    again = await CALLS[call](images, held)
    ended = call in ("advance", "succeed", "fail", "repair", "persist")
    assert again.answer is (ALREADY if ended else OK)
    if call != "reopen":  # what was removed is not known any more
        assert set(again.facts) == set(first.facts)


@pytest.mark.parametrize("call", CALLS)
async def test_a_spoilt_key_fails_before_any_write(images: ImageHarness, call: str) -> None:
    held = await ready_for(images, call)
    keys = keys_of(images, held.image_id, call)
    assert (await images.needs(keys, lambda: CALLS[call](images, held))).answer is OK


#: Of concurrent calls one has an effect; the others get this answer.
CONCURRENT: dict[str, ImageAnswer] = {
    **dict.fromkeys(("succeed", "fail", "repair", "persist"), ALREADY),
    "claim": CONFLICT,
    "stalled": CONFLICT,
    "delete": MISSING,
}


@pytest.mark.parametrize("call", CONCURRENT)
async def test_of_concurrent_calls_one_has_an_effect(images: ImageHarness, call: str) -> None:
    if call in ("claim", "stalled"):
        held = ProcessingAttempt(await images.create(), "")
        if call == "stalled":
            await images.claim(held.image_id)
            await images.over(held.image_id)
    else:
        held = await ready_for(images, call)
    other = ImageHarness(images.backend, images.jobs)
    begin = calls.get(call) or calls["claim"]
    outcomes = await asyncio.gather(*(begin(each, held) for each in (images, other) * 10))
    await other.close()
    answers = [outcome.answer for outcome in outcomes]
    assert (answers.count(OK), answers.count(CONCURRENT[call])) == (1, 19)
    assert len(await images.entries()) <= 1


async def test_create_fails_if_a_key_has_the_wrong_type(images: ImageHarness) -> None:
    once = {"idempotency_key": "{0}:idempotency.img:k", "fingerprint": "p", "idempotency_ttl_s": 60}
    new, keys = new_image(tenant="acme", **once), images.keys
    names = [key(new.image_id) for key in (keys.record, keys.status, keys.upload)]
    names += [keys.index(), keys.index("acme"), keys.results, new.idempotency_key]
    assert (await images.needs(names, lambda: images.store.create(new))).answer is OK


async def test_no_dead_letter_is_written_if_a_key_has_the_wrong_type(images: ImageHarness) -> None:
    entry_id = await images.third_party_entry({"x": "y"})
    await images.client.sadd(images.keys.dead_results, "something else")
    async with images.refuses():
        await images.store.dead_letter_result(entry_id, {"x": "y"}, "odd", 1, GROUP)
    assert await images.pending() == 1


async def test_a_lease_of_the_wrong_type_stops_the_worker(images: ImageHarness) -> None:
    held = await images.processing()
    assert held.fence is not None
    await images.needs([held.fence.lease_key], lambda: images.succeed(held))


async def test_an_invalid_ttl_is_replaced_by_a_default(images: ImageHarness) -> None:
    for ttl_s in ("", "0", "-1", "x", "99999999999", "1e9"):
        held = await images.processing()
        await images.client.hset(images.keys.record(held.image_id), "ttl_s", ttl_s)
        assert (await images.succeed(held)).answer is OK
        ttl = await images.client.ttl(images.keys.record(held.image_id))
        assert 30 * 86_400 - 60 < ttl <= 30 * 86_400, ttl_s


async def test_an_invalid_outcome_fails_the_operation_that_reads_it(images: ImageHarness) -> None:
    held = await images.failed()
    await images.client.hset(images.keys.record(held.image_id), "outcome", "{")
    async with images.refuses():
        await images.fail(held)


async def test_an_invalid_progress_is_overwritten(images: ImageHarness) -> None:
    held = await images.processing()
    await images.client.hset(images.keys.status(held.image_id), "progress", "much")
    assert (await images.store.advance(held, Stage.DECODING)).answer is OK
    assert await images.stage(held.image_id) == ("decoding", "30")


@pytest.mark.real_redis
async def test_without_memory_running_work_ends(impatient_images: ImageHarness) -> None:
    calls = [*WORKING, "hold", "release"]
    ready = {call: await ready_for(impatient_images, call) for call in calls}
    entry_id = await impatient_images.third_party_entry({"x": "y"})
    async with impatient_images.out_of_memory():
        for call, held in ready.items():
            assert (await CALLS[call](impatient_images, held)).answer is OK, call
        await impatient_images.store.dead_letter_result(entry_id, {"x": "y"}, "odd", 1, GROUP)
    assert await impatient_images.client.xlen(impatient_images.keys.dead_results) == 1


@pytest.mark.real_redis
@pytest.mark.parametrize("call", ["create", "claim", "submit", "reopen"])
async def test_without_memory_no_new_work_starts(impatient_images: ImageHarness, call: str) -> None:
    images = impatient_images
    begin: Call = CALLS.get(call) or (lambda images, _: images.store.create(new_image()))
    held = await ready_for(images, call)
    if call == "claim":
        held = ProcessingAttempt(await images.create(), fresh_upload())
    async with images.out_of_memory(), images.refuses(StoreUnavailable):
        await begin(images, held)
    assert (await begin(images, held)).answer is OK


# -- Superseded uploads and attempts, and states that do not allow a call: nothing changes --------


ENDS = "succeed fail repair"
#: For each state the answers to calls that it does not allow.
REFUSED = {
    "missing": {MISSING: f"claim submit reopen advance {ENDS}", LOST: "hold release"},
    "new": {CONFLICT: "reopen", LOST: f"hold submit advance {ENDS}"},
    "uploading": {CONFLICT: "claim reopen", LOST: f"advance {ENDS}"},
    "another upload": {CONFLICT: "claim reopen", LOST: f"hold release submit advance {ENDS}"},
    "processing": {CONFLICT: "claim reopen", LOST: "hold release"},
    "upload replaced": {CONFLICT: "claim reopen", LOST: f"hold release submit advance {ENDS}"},
    "no upload": {CONFLICT: "claim reopen", LOST: f"hold release submit advance {ENDS}"},
    "attempt superseded": {LOST: "advance succeed fail"},
    "without a lease": {LOST: "advance succeed fail"},
    "processed": {CONFLICT: "claim reopen", LOST: "hold release", ALREADY: f"advance {ENDS}"},
    "failed": {CONFLICT: "claim", LOST: "hold release", ALREADY: f"advance {ENDS}"},
    "reopened": {LOST: f"hold submit advance {ENDS}"},
    "reopened, uploading": {CONFLICT: "claim reopen", LOST: f"hold release submit advance {ENDS}"},
    "reopened, third-party upload": {CONFLICT: "claim reopen", LOST: f"hold submit advance {ENDS}"},
    "deleted": {MISSING: f"claim submit reopen advance {ENDS}", LOST: "hold release"},
}
calls: dict[str, Call] = {
    **CALLS,
    "claim": lambda images, held: images.store.claim(held.image_id, fresh_upload(), HOLD_MS),
}


async def in_state(images: ImageHarness, state: str) -> ProcessingAttempt:
    """An image in this state, as the caller knows it."""
    if state == "missing":
        return ProcessingAttempt("nobody", fresh_upload())
    if state in ("new", "uploading", "another upload"):
        image_id = await images.create()
        upload_id = fresh_upload() if state == "new" else await images.claim(image_id)
        return ProcessingAttempt(image_id, "0" * 16 if state == "another upload" else upload_id)
    held = await images.processing()
    job_id = (await images.record(held.image_id))["job_id"]
    if state == "upload replaced":
        return held._replace(upload_id="0" * 16, fence=None)
    if state == "no upload":
        return held._replace(upload_id="", fence=None)
    if state == "attempt superseded":
        await images.hold(held.image_id, held.upload_id, job_id, attempt=2)
    elif state == "without a lease":
        await images.client.delete(images.jobs.lease(job_id))
    elif state == "processed":
        await images.succeed(held)
    elif state == "deleted":
        await images.store.delete(held.image_id)
    elif state != "processing":
        await images.fail(held)
    if state.startswith("reopened"):
        await images.store.reopen(held.image_id)
        if state == "reopened, uploading":
            await images.claim(held.image_id)
        elif state != "reopened":
            await images.client.set(images.keys.upload(held.image_id), "claimed", ex=3600)
    return held


@pytest.mark.parametrize("state", REFUSED)
async def test_calls_that_a_state_does_not_allow(images: ImageHarness, state: str) -> None:
    held = await in_state(images, state)
    status = (await images.record(held.image_id)).get("status")
    fenced = state in ("attempt superseded", "without a lease")
    for attempt in [held] if fenced else [held, held._replace(fence=None)]:
        async with images.unchanged():
            for answer, names in REFUSED[state].items():
                for name in names.split():
                    outcome = await calls[name](images, attempt)
                    assert outcome.answer is answer, name
                    if answer is CONFLICT:
                        assert outcome.facts == {"status": status}
    if status in ("processing", "processed", "failed"):
        # The record lives longer than the guard.
        await images.client.delete(images.keys.upload(held.image_id))
        assert (await calls["claim"](images, held)).answer is CONFLICT

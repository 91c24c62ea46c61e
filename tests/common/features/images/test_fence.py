"""Superseded uploads and attempts, and calls in states that do not allow them, change nothing."""

from __future__ import annotations

import pytest

from common.features.images.types import ProcessingAttempt
from tests.common.features.images.test_corrupt import CALLS, Call
from tests.support.store.images import (
    ALREADY,
    CONFLICT,
    HOLD_MS,
    LOST,
    MISSING,
    ImageHarness,
    fresh_upload,
)

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

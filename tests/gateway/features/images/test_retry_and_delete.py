"""Repeated uploads and deletion: only when allowed, complete, and idempotent."""

from __future__ import annotations

from typing import Any

import pytest

from common.contracts.images import storage_key
from common.features.images.storage.base import StorageError
from tests.conftest import eventually
from tests.gateway.access_kit import bearer, key_for
from tests.gateway.conftest import check_problem
from tests.gateway.features.images.conftest import MakeImages
from tests.gateway.features.images.kit import IMAGES, KEYS, Images


async def reopen(images: Images, image_id: str) -> Any:
    return await images.client.send("POST", f"{IMAGES}/{image_id}/retry-upload")


async def delete(images: Images, image_id: str) -> Any:
    return await images.client.send("DELETE", f"{IMAGES}/{image_id}")


# -- retry-upload ----------------------------------------------------------------------------------


async def test_a_failed_image_accepts_another_upload(images: Images) -> None:
    image_id = await images.uploaded()
    await images.fail(image_id)
    check_problem(await images.upload(image_id), 409, "already_uploaded")
    answer = await reopen(images, image_id)
    assert answer.status == 200
    assert answer.json() == {
        "image_id": image_id,
        "status": "queued",
        "stage": "queued",
        "upload_url": f"{IMAGES}/{image_id}/upload",
    }
    assert not await images.redis.exists(KEYS.upload(image_id))
    status = await images.status(image_id)
    assert (status["stage"], status["progress"]) == ("queued", "0")
    assert "error" not in status
    view = await images.view(image_id)
    assert not {"error", "error_code", "job_id"} & set(view)
    assert images.spooled() == []
    assert (await images.upload(image_id)).status == 202
    await images.succeed(image_id)
    assert (await images.view(image_id))["status"] == "processed"


async def test_an_upload_with_an_expired_claim_can_be_retried(images: Images) -> None:
    image_id = await images.create()
    await images.services.store.claim(image_id, "ab" * 8, 60_000)
    check_problem(await reopen(images, image_id), 409, "not_failed")
    await images.redis.hset(KEYS.record(image_id), "upload_deadline_ms", "1")  # type: ignore[misc]
    assert (await reopen(images, image_id)).status == 200
    await images.check_free(image_id)


@pytest.mark.parametrize("state", ["queued", "processing", "processed"])
async def test_retry_is_rejected_unless_the_image_has_failed(images: Images, state: str) -> None:
    image_id = await (images.create() if state == "queued" else images.uploaded())
    if state == "processed":
        await images.succeed(image_id)
    before = await images.gateway.snapshot()
    check_problem(await reopen(images, image_id), 409, "not_failed")
    assert await images.gateway.snapshot() == before
    check_problem(await reopen(images, "x"), 404, "image_not_found")


# -- delete ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "processing", "processed", "failed"])
async def test_delete_removes_everything(images: Images, state: str) -> None:
    image_id = await (images.create() if state == "queued" else images.uploaded())
    if state == "processed":
        await images.succeed(image_id)
    elif state == "failed":
        await images.fail(image_id)
    answer = await delete(images, image_id)
    assert (answer.status, answer.body) == (204, b"")
    left = [key.decode() for key in await images.redis.keys(f"*{image_id}*")]
    assert left in ([], [KEYS.deleted(image_id)])
    assert await images.redis.zcard(KEYS.index()) == 0
    assert await images.redis.zcard(KEYS.inflight) == 0
    assert images.spooled() == []
    assert await images.services.storage.read(storage_key(image_id)) is None
    check_problem(await images.read(image_id), 404, "image_not_found")
    assert (await delete(images, image_id)).status == 204


async def test_delete_cancels_a_queued_job(images: Images) -> None:
    image_id = await images.uploaded()
    job_id = (await images.view(image_id))["job_id"]
    await delete(images, image_id)
    job = (await images.client.get(f"/v1/jobs/{job_id}")).json()
    assert job["status"] == "canceled"


async def test_delete_during_an_upload_ends_the_upload(images: Images) -> None:
    image_id = await images.create()
    upload = images.begin_unfinished(image_id, [b"x" * 1000])
    await eventually(lambda: not upload._chunks)
    assert (await delete(images, image_id)).status == 204
    upload.finish()
    check_problem(await upload.answer(), 404, "image_not_found")
    assert images.spooled() == []
    assert await images.jobs() == 0


async def test_delete_is_retryable_if_the_storage_fails(images: Images, monkeypatch: Any) -> None:
    """The record stays until the object is deleted, so that the same request can be repeated."""

    async def away(*args: Any) -> Any:
        raise StorageError("no bucket")

    image_id = await images.uploaded()
    await images.succeed(image_id)
    with monkeypatch.context() as patched:
        patched.setattr(images.services.storage, "delete", away)
        check_problem(await delete(images, image_id), 503, "storage_unavailable")
    assert (await images.view(image_id))["status"] == "processed"
    assert (await delete(images, image_id)).status == 204
    assert await images.services.storage.read(storage_key(image_id)) is None


@pytest.mark.parametrize("state", ["failed", "reopened"])
async def test_delete_removes_the_object_of_a_failed_attempt(
    images: Images, monkeypatch: Any, state: str
) -> None:
    """The object was stored before the attempt failed, so only the deletion removes it."""

    async def away(*args: Any) -> Any:
        raise StorageError("no bucket")

    image_id = await images.uploaded()
    await images.services.storage.put(storage_key(image_id), b"left", "image/webp")
    await images.fail(image_id)
    if state == "reopened":
        assert (await reopen(images, image_id)).status == 200
    with monkeypatch.context() as patched:
        patched.setattr(images.services.storage, "delete", away)
        check_problem(await delete(images, image_id), 503, "storage_unavailable")
    assert (await delete(images, image_id)).status == 204
    assert await images.services.storage.read(storage_key(image_id)) is None


async def test_an_invalid_id_is_not_found(fake_images: Images) -> None:
    check_problem(await delete(fake_images, "x"), 404, "image_not_found")
    assert (await delete(fake_images, "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e")).status == 204


async def test_deleting_for_another_tenant_is_recorded(fake_make_images: MakeImages) -> None:
    images = fake_make_images(auth="required")
    shop = bearer(await key_for(images.gateway, tenant="shop"))
    admin = bearer(await key_for(images.gateway, scopes=("admin",)))
    ids = [(await images.client.send("POST", IMAGES, shop)).json()["image_id"] for _ in range(2)]
    for image_id, caller in zip(ids, (shop, admin)):
        answer = await images.client.send("DELETE", f"{IMAGES}/{image_id}", caller)
        assert answer.status == 204
    entries = (await images.client.get("/v1/trail", admin)).json()["items"]
    assert [(entry["action"], entry["target"]) for entry in entries] == [("image.delete", ids[1])]

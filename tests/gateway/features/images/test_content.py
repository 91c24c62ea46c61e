"""The stored image or a redirect to it; repeated uploads and deletion."""

from __future__ import annotations

import hashlib
import shutil
from typing import Any

import pytest

from sluice.common.contracts.images import ImageStatus, storage_key
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.storage.base import StorageError
from sluice.gateway.features.images.content import disposition
from tests.gateway.features.images.conftest import MakeImages
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import check_problem
from tests.support.gateway.images import IMAGES, KEYS, STORED, UNKNOWN, Images
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only


async def fetch(images: Images, image_id: str, **headers: str) -> Any:
    return await images.client.get(f"{IMAGES}/{image_id}/content", headers)


async def test_the_stored_bytes_are_served(images: Images) -> None:
    image_id = await images.uploaded(filename="See.jpg")
    data = STORED * 40_000
    await images.succeed(image_id, data)
    answer = await fetch(images, image_id)
    assert (answer.status, answer.body) == (200, data)
    assert answer.header("content-type") == "image/webp"
    assert answer.header("content-length") == str(len(data))
    etag = answer.header("etag")
    assert etag == f'"{hashlib.md5(data).hexdigest()}"'
    assert answer.header("x-content-type-options") == "nosniff"
    assert answer.header("content-disposition") == 'inline; filename="See.webp"'
    assert answer.header("cache-control") == "private, max-age=3600"
    view = await images.view(image_id)
    assert view["etag"] == etag.strip('"')
    assert view["sha256"] == hashlib.sha256(answer.body).hexdigest()
    assert view["file_size"] == len(answer.body)
    for known in (etag, f'W/{etag}, "x"', "*"):
        answer = await fetch(images, image_id, if_none_match=known)
        assert (answer.status, answer.body, answer.header("etag")) == (304, b"", etag)
    exchange = images.client.begin("GET", f"{IMAGES}/{image_id}/content")
    await exchange.start()
    await exchange.chunk()
    await exchange.abandon()  # a client may disconnect during the download
    await images.redis.delete(KEYS.status(image_id), KEYS.upload(image_id))
    answer = await fetch(images, image_id, if_none_match='"x"')
    assert (answer.status, answer.body) == (200, data), "also after the status has expired"


async def test_content_requires_a_processed_image(images: Images) -> None:
    image_id = await images.create()
    check_problem(await fetch(images, image_id), 409, "image_not_ready")
    await images.upload(image_id)
    answer = await fetch(images, image_id)
    check_problem(answer, 409, "image_not_ready")
    assert answer.header("retry-after") == "1"
    await images.fail(image_id)
    check_problem(await fetch(images, image_id), 404, "image_failed")
    check_problem(await fetch(images, "x"), 404, "image_not_found")


async def test_missing_and_unavailable_objects_are_reported(
    images: Images, monkeypatch: Any
) -> None:
    away = raising(StorageError("the bucket does not answer"))
    image_id = await images.uploaded()
    await images.succeed(image_id)
    with monkeypatch.context() as patched:
        patched.setattr(images.services.storage, "read", away)
        problem = check_problem(await fetch(images, image_id), 503, "storage_unavailable")
        assert "bucket" not in problem["detail"], "the cause is only logged"
    directory: Any = images.services.storage
    shutil.rmtree(directory.directory)
    check_problem(await fetch(images, image_id), 410, "content_gone")


async def test_an_object_with_a_url_is_redirected(images: Images, monkeypatch: Any) -> None:
    async def presigned_url(key: str, seconds: int) -> str:
        return f"https://s3.example/{key}?for={seconds}"

    image_id = await images.uploaded()
    await images.succeed(image_id)
    monkeypatch.setattr(images.services.storage, "url", presigned_url)
    answer = await fetch(images, image_id)
    assert (answer.status, answer.body) == (307, b"")
    assert answer.header("location") == f"https://s3.example/images/{image_id}.webp?for=300"
    assert answer.header("cache-control") == "no-store"


async def test_invalid_headers_of_the_record_are_replaced(images: Images) -> None:
    image_id = await images.uploaded()
    await images.succeed(image_id)
    for etag in ("", 'x"\r\nSet-Cookie: a=b', "\u20ac", "a b", "x" * 1000):
        unsafe = {"etag": etag, "content_type": "text/html"}
        await images.redis.hset(KEYS.record(image_id), mapping=unsafe)
        answer = await fetch(images, image_id)
        assert (answer.status, answer.body) == (200, STORED)
        assert answer.header("content-type") == "application/octet-stream"
        assert answer.header("etag") == f'"{hashlib.sha256(STORED).hexdigest()}"'


@pytest.mark.parametrize(
    ("filename", "header"),
    [
        ("", 'inline; filename="ID.webp"'),
        ("a.jpeg", 'inline; filename="a.webp"'),
        ("noextension", 'inline; filename="noextension.webp"'),
        ("../../etc/passwd", 'inline; filename="passwd.webp"'),
        ("C:\\x\\y.png", 'inline; filename="y.webp"'),
        ('a"; filename="b.exe', "inline; filename=\"a__ filename=_b.webp\"; "
         "filename*=UTF-8''a%22%3B%20filename%3D%22b.webp"),
        ("übel.jpg", "inline; filename=\"_bel.webp\"; filename*=UTF-8''%C3%BCbel.webp"),
        (".hidden", 'inline; filename="hidden.webp"'),
        ("...", 'inline; filename="ID.webp"'),
    ],
)  # fmt: skip
def test_filenames_are_made_safe(filename: str, header: str) -> None:
    record = ImageRecord("ID", ImageStatus.PROCESSED, "", "", filename=filename)
    found = disposition(record)
    assert found == header
    assert found.isascii()
    assert found.isprintable()


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
    again = {"status": "queued", "stage": "queued", "upload_url": f"{IMAGES}/{image_id}/upload"}
    assert (answer.status, answer.json()) == (200, {"image_id": image_id, **again})
    view = await images.view(image_id)
    assert (view["stage"], view["progress"]) == ("queued", 0)
    assert not {"error", "error_code", "job_id"} & set(view)
    assert (await images.status(image_id))["progress"] == "0"
    assert not await images.redis.exists(KEYS.upload(image_id))
    assert images.spooled() == []
    assert (await images.upload(image_id)).status == 202
    await images.succeed(image_id)
    assert (await images.view(image_id))["status"] == "processed"


async def test_retry_is_rejected_unless_the_image_has_failed(images: Images) -> None:
    ids = [await images.create(), await images.uploaded(), await images.uploaded()]
    await images.succeed(ids[-1])
    before = await images.gateway.snapshot()
    for image_id in ids:
        check_problem(await reopen(images, image_id), 409, "not_failed")
    check_problem(await reopen(images, "x"), 404, "image_not_found")
    check_problem(await delete(images, "x"), 404, "image_not_found")
    assert (await delete(images, UNKNOWN)).status == 204
    assert await images.gateway.snapshot() == before


# -- delete ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "processing", "succeed", "fail"])
async def test_delete_removes_everything(images: Images, state: str) -> None:
    image_id = await (images.create() if state == "queued" else images.uploaded())
    if state in ("succeed", "fail"):
        await getattr(images, state)(image_id)
    job_id = (await images.view(image_id)).get("job_id")
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
    if state == "processing":
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


@pytest.mark.parametrize("state", ["processed", "failed", "reopened"])
async def test_delete_is_retryable_if_the_storage_fails(
    images: Images, monkeypatch: Any, state: str
) -> None:
    """The record stays until the object is deleted; a failed attempt may have left one."""
    image_id = await images.uploaded()
    if state == "processed":
        await images.succeed(image_id)
    else:
        await images.services.storage.put(storage_key(image_id), b"left", "image/webp")
        await images.fail(image_id)
    if state == "reopened":
        assert (await reopen(images, image_id)).status == 200
    before = await images.view(image_id)
    with monkeypatch.context() as patched:
        patched.setattr(images.services.storage, "delete", raising(StorageError("no bucket")))
        check_problem(await delete(images, image_id), 503, "storage_unavailable")
    assert await images.view(image_id) == before
    assert (await delete(images, image_id)).status == 204
    assert await images.services.storage.read(storage_key(image_id)) is None


async def test_a_deletion_without_a_key_is_recorded(make_images: MakeImages) -> None:
    images = make_images()
    shop = bearer(await key_for(images.gateway, tenant="shop"))
    image_id = (await images.client.send("POST", IMAGES, shop)).json()["image_id"]
    assert (await delete(images, image_id)).status == 204
    [entry] = (await images.client.get("/v1/trail")).json()["items"]
    assert (entry["who"], entry["action"], entry["target"]) == ("local", "image.delete", image_id)


async def test_deleting_for_another_tenant_is_recorded(make_images: MakeImages) -> None:
    images = make_images(auth="required")
    shop = bearer(await key_for(images.gateway, tenant="shop"))
    admin = bearer(await key_for(images.gateway, scopes=("admin",)))
    ids = [(await images.client.send("POST", IMAGES, shop)).json()["image_id"] for _ in range(2)]
    for image_id, caller in zip((*ids, UNKNOWN), (shop, admin, shop)):
        answer = await images.client.send("DELETE", f"{IMAGES}/{image_id}", caller)
        assert answer.status == (404 if image_id == UNKNOWN else 204)
    entries = (await images.client.get("/v1/trail", admin)).json()["items"]
    assert [(entry["action"], entry["target"]) for entry in entries] == [("image.delete", ids[1])]

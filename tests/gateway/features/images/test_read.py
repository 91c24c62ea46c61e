"""`POST /v1/images`, `GET /v1/images/{id}` and the list: validation, record, progress, tenants."""

from __future__ import annotations

import calendar
import hashlib
import re
import time
from typing import Any

import pytest

from sluice.common.contracts.images import STAGE_PROGRESS
from tests.gateway.features.images.conftest import MakeImages
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.asgi import JSON
from tests.support.gateway.harness import check_problem
from tests.support.gateway.images import (
    BYTES,
    DETAILS,
    IMAGES,
    KEYS,
    STAGES,
    STORED,
    UNKNOWN,
    Images,
)

pytestmark = pytest.mark.fakeredis_only

WHOLE: dict[str, Any] = {
    "content_type": "image/jpeg",
    "filename": "Ferien am See.jpg",
    "max_bytes": 5000,
    "metadata": {"album": 7, "tags": ["ä", None, 1.5]},
    "detect": "none",
}


async def test_an_empty_request_creates_an_image(images: Images) -> None:
    answer = await images.client.send("POST", IMAGES)
    assert answer.status == 201
    view = answer.json()
    image_id = view["image_id"]
    assert re.fullmatch(
        r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", image_id
    )
    assert set(view) == {"image_id", "status", "upload_url", "expires_at"}
    assert view["status"] == "queued"
    assert view["upload_url"] == f"{IMAGES}/{image_id}/upload"
    assert answer.header("location") == f"{IMAGES}/{image_id}"
    assert answer.header("link") == f'<{IMAGES}/{image_id}/events>; rel="monitor"'
    ends_s = calendar.timegm(time.strptime(view["expires_at"], "%Y-%m-%dT%H:%M:%SZ"))
    assert 3590 <= ends_s - time.time() <= 3600
    status = await images.status(image_id)
    assert set(status) == {"stage", "progress", "updated_at"}, "the seed's fields, and no others"
    assert (status["stage"], status["progress"]) == ("queued", "0")
    for key in (KEYS.status(image_id), KEYS.record(image_id)):
        assert 3590 <= await images.redis.ttl(key) <= 3600
    assert not await images.redis.exists(KEYS.upload(image_id))


async def test_every_member_of_the_request_is_stored(images: Images) -> None:
    longest = {"x": "y" * (16_384 - len('{"x":""}'))}
    for content_type, kept in (
        ("image/jpeg", "image/jpeg"),
        ("IMAGE/JPG", "image/jpeg"),
        ("image/png;q=1", "image/png"),
    ):
        for metadata in (WHOLE["metadata"], longest, {}):
            body = {**WHOLE, "content_type": content_type, "metadata": metadata}
            view = await images.view(await images.create(body))
            assert view["declared_type"] == kept
            for name in ("filename", "max_bytes", "metadata", "detect"):
                assert view[name] == body[name]


async def test_the_same_key_creates_one_image(images: Images) -> None:
    first = await images.post(WHOLE, idempotency_key="photo-7")
    again = await images.post(WHOLE, idempotency_key='"photo-7"')
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert first.header("idempotent-replayed") is None
    assert again.header("idempotent-replayed") == "true"
    assert again.header("idempotency-replayed") == "true"
    assert again.header("location") == first.header("location")
    other = await images.post({"detect": "none"}, idempotency_key="photo-7")
    check_problem(other, 422, "idempotency_key_reused")
    assert len((await images.client.get(IMAGES)).json()["items"]) == 1
    defaults = await images.create(None, idempotency_key="k")
    body = {"detect": "auto", "metadata": {}}
    assert await images.create(body, idempotency_key="k") == defaults
    await images.client.send("DELETE", f"{IMAGES}/{defaults}")
    assert await images.create(idempotency_key="k") != defaults, "it was deleted"


INVALID_MEMBERS: dict[str, tuple[Any, ...]] = {
    "size": (1,),
    "content_type": ("image/svg+xml", "text/html", 7),
    "filename": ("", "x" * 256, "a\nb.jpg"),
    "max_bytes": (0, "5"),
    "metadata": ([], {"x": "y" * 16_384}),
    "detect": ("faces",),
}


async def test_an_invalid_request_changes_nothing(images: Images) -> None:
    check_problem(await images.post([]), 422, "invalid_request")
    for member, values in INVALID_MEMBERS.items():
        for value in values:
            answer = await images.post({member: value})
            problem = check_problem(answer, 422, "invalid_request")
            assert problem["errors"][0]["pointer"] == f"/{member}", value
    client, plain = images.client, {"content-type": "text/plain"}
    check_problem(await client.send("POST", IMAGES, JSON, b"{"), 400, "malformed_json")
    check_problem(await client.send("POST", IMAGES, plain, b"{}"), 415, "unsupported_media_type")
    check_problem(await images.post({}, idempotency_key="ä"), 400, "invalid_idempotency_key")
    assert await images.redis.dbsize() == 0


async def test_keys_decide_the_task_and_the_tenant(make_images: MakeImages) -> None:
    images = make_images(auth="required")
    key = await key_for(images.gateway, tasks=("chat",))
    answer = await images.client.send("POST", IMAGES, bearer(key))
    check_problem(answer, 403, "task_not_allowed")
    key = await key_for(images.gateway, tenant="shop")
    answer = await images.client.send("POST", IMAGES, bearer(key))
    job = await images.client.post({"task": "chat", "payload": {}}, bearer(key))
    assert answer.json()["image_id"][-12:] == job.json()["job_id"][-12:]


async def test_an_image_is_described_at_every_stage(images: Images) -> None:
    image_id = await images.create({"filename": "a.png", "metadata": {"n": 1}})
    view = await images.view(image_id)
    assert (view["status"], view["stage"], view["progress"]) == ("queued", "queued", 0)
    assert view["upload_url"] == f"{IMAGES}/{image_id}/upload"
    assert (view["filename"], view["metadata"], view["detect"]) == ("a.png", {"n": 1}, "auto")
    await images.upload(image_id)
    view = await images.view(image_id)
    assert (view["status"], view["stage"], view["progress"]) == ("processing", "queued", 0)
    assert "upload_url" not in view
    for stage in STAGES:
        await images.advance(image_id, stage)
        view = await images.view(image_id)
        assert (view["status"], view["stage"]) == ("processing", stage.value)
        assert view["progress"] == int(STAGE_PROGRESS[stage])
    await images.succeed(image_id)
    view = await images.view(image_id)
    assert (view["status"], view["stage"], view["progress"]) == ("processed", "done", 100)
    assert view["sha256"] == hashlib.sha256(STORED).hexdigest()
    assert view["etag"] == hashlib.md5(STORED).hexdigest()
    assert (view["file_size"], view["content_type"]) == (len(STORED), "image/webp")
    assert (view["original_width"], view["original_height"]) == (4032, 3024)
    assert (view["processed_width"], view["processed_height"]) == (1920, 1440)
    assert view["storage_key"] == f"images/{image_id}.webp"
    assert view["content_url"] == f"{IMAGES}/{image_id}/content"
    assert view["source_sha256"] == hashlib.sha256(BYTES).hexdigest()
    for name, value in DETAILS.items():
        assert view[name] == value
    assert not {"error", "error_code", "failed_at", "tenant", "upload_id"} & set(view)


@pytest.mark.parametrize("end", ["succeed", "fail", ""])
async def test_an_expired_status_does_not_change_the_view(images: Images, end: str) -> None:
    image_id = await images.uploaded()
    if end:
        await getattr(images, end)(image_id)
    view = await images.view(image_id)
    if end == "fail":
        assert (view["status"], view["stage"], view["progress"]) == ("failed", "failed", -1)
        assert (view["error"], view["error_code"]) == ("file too large", "VALIDATION_FAILED")
        assert view["reason"] == "file_too_large"
        assert view["failed_at"]
        assert "content_url" not in view
    await images.redis.delete(KEYS.status(image_id))
    assert await images.view(image_id) == view


async def test_an_unchanged_image_gets_304(images: Images) -> None:
    image_id = await images.uploaded()
    etag = (await images.read(image_id)).header("etag")
    assert etag
    for known in (etag, f'"x", W/{etag}', "*"):
        answer = await images.read(image_id, if_none_match=known)
        assert (answer.status, answer.body, answer.header("etag")) == (304, b"", etag)
    await images.advance(image_id, STAGES[0])
    answer = await images.read(image_id, if_none_match=etag)
    assert answer.status == 200
    assert answer.header("etag") != etag


async def test_an_invalid_record_is_tolerated(images: Images) -> None:
    image_id = await images.uploaded()
    await images.succeed(image_id)
    fields = {"details": '{"detections":[1],"detector":"x","timings_ms":7}', "metadata": "no JSON"}
    await images.redis.hset(KEYS.record(image_id), mapping=fields)
    view = await images.view(image_id)
    assert (view["detector"], view["metadata"]) == ("x", {})
    assert not {"detections", "timings_ms"} & set(view)
    await images.redis.delete(KEYS.record(image_id))
    await images.redis.set(KEYS.record(image_id), "no hash")
    for unknown in (image_id, UNKNOWN, "x", "%C2%A0", "é"):
        check_problem(await images.read(unknown), 404, "image_not_found")


async def test_pages_list_each_image_once_newest_first(images: Images) -> None:
    ids = [await images.create() for _ in range(7)]
    await images.upload(ids[3])
    await images.advance(ids[3], STAGES[1])
    pages = await images.client.pages(f"{IMAGES}?limit=3")
    assert [len(page["items"]) for page in pages] == [3, 3, 1]
    found = [view for page in pages for view in page["items"]]
    assert sorted(view["image_id"] for view in found) == sorted(ids)
    times = [view["created_at"] for view in found]
    assert times == sorted(times, reverse=True)
    [moved] = [view for view in found if view["image_id"] == ids[3]]
    assert (moved["stage"], moved["progress"]) == ("decoding", 30)
    for query in ("limit=0", "limit=101", "limit=x", "before=x", "before=1-x"):
        answer = await images.client.get(f"{IMAGES}?{query}")
        check_problem(answer, 422, "invalid_request")


async def test_images_of_another_tenant_look_like_missing_ones(make_images: MakeImages) -> None:
    images = make_images(auth="required")
    shop = bearer(await key_for(images.gateway, tenant="shop"))
    other = bearer(await key_for(images.gateway, tenant="other"))
    admin = bearer(await key_for(images.gateway, scopes=("admin",)))
    image_id = (await images.client.send("POST", IMAGES, shop)).json()["image_id"]
    target = f"{IMAGES}/{image_id}"
    assert (await images.client.get(target, shop)).status == 200
    assert (await images.client.get(target, admin)).status == 200
    for method, path in (
        ("GET", ""), ("GET", "/events"), ("GET", "/content"), ("PUT", "/upload"),
        ("POST", "/upload"), ("POST", "/retry-upload"), ("DELETE", ""),
    ):  # fmt: skip
        other_answer = await images.client.send(method, target + path, other)
        problem = check_problem(other_answer, 404, "image_not_found")
        missing = await images.client.send(method, f"{IMAGES}/{UNKNOWN}{path}", other)
        assert check_problem(missing, 404, "image_not_found")["detail"] == problem["detail"]
    many = await images.client.get(f"{IMAGES}/events?image_ids={image_id}", other)
    check_problem(many, 404, "image_not_found")
    assert (await images.client.get(IMAGES, other)).json()["items"] == []
    for caller in (shop, admin):
        [listed] = (await images.client.get(IMAGES, caller)).json()["items"]
        assert listed["image_id"] == image_id

"""`GET /v1/images/{id}` and the list: record and progress, by tenant."""

from __future__ import annotations

import hashlib

import pytest

from common.contracts.images import STAGE_PROGRESS
from tests.gateway.access_kit import bearer, key_for
from tests.gateway.conftest import check_problem
from tests.gateway.features.images.conftest import MakeImages
from tests.gateway.features.images.kit import BYTES, DETAILS, IMAGES, KEYS, STAGES, STORED, Images


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


async def test_a_failed_image_has_its_error(images: Images) -> None:
    image_id = await images.uploaded()
    await images.fail(image_id)
    view = await images.view(image_id)
    assert (view["status"], view["stage"], view["progress"]) == ("failed", "failed", -1)
    assert (view["error"], view["error_code"]) == ("file too large", "VALIDATION_FAILED")
    assert view["reason"] == "file_too_large"
    assert view["failed_at"]
    assert "content_url" not in view


@pytest.mark.parametrize("end", ["succeed", "fail", ""])
async def test_an_expired_status_does_not_change_the_view(images: Images, end: str) -> None:
    image_id = await images.uploaded()
    if end:
        await getattr(images, end)(image_id)
    before = await images.view(image_id)
    await images.redis.delete(KEYS.status(image_id))
    assert await images.view(image_id) == before


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


async def test_unknown_images_are_not_found(images: Images) -> None:
    for image_id in ("6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e", "x", "%00", "é"):
        check_problem(await images.read(image_id), 404, "image_not_found")


async def test_an_invalid_record_is_tolerated(images: Images) -> None:
    image_id = await images.uploaded()
    await images.succeed(image_id)
    fields = {"details": '{"detections":[1],"detector":"x","timings_ms":7}', "metadata": "no JSON"}
    await images.redis.hset(KEYS.record(image_id), mapping=fields)  # type: ignore[misc]
    view = await images.view(image_id)
    assert (view["detector"], view["metadata"]) == ("x", {})
    assert not {"detections", "timings_ms"} & set(view)
    await images.redis.delete(KEYS.record(image_id))
    await images.redis.set(KEYS.record(image_id), "no hash")
    check_problem(await images.read(image_id), 404, "image_not_found")


async def test_pages_list_each_image_once_newest_first(images: Images) -> None:
    ids = [await images.create() for _ in range(7)]
    await images.upload(ids[3])
    await images.advance(ids[3], STAGES[1])
    found, before = [], ""
    while True:
        answer = await images.client.get(f"{IMAGES}?limit=3&before={before}")
        assert answer.status == 200
        page = answer.json()
        found += page["items"]
        assert len(page["items"]) <= 3
        if "next" not in page:
            break
        before = page["next"]
    assert sorted(view["image_id"] for view in found) == sorted(ids)
    assert [view["image_id"] for view in found] == _by_time(found, ids)
    [moved] = [view for view in found if view["image_id"] == ids[3]]
    assert (moved["stage"], moved["progress"]) == ("decoding", 30)


def _by_time(found: list[dict[str, str]], ids: list[str]) -> list[str]:
    """Newest first; of the same millisecond in any order that pages agree on."""
    created = {view["image_id"]: view["created_at"] for view in found}
    order = [view["image_id"] for view in found]
    assert sorted(order, key=lambda image_id: created[image_id], reverse=True) == order
    return order


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "before=x", "before=1-x"])
async def test_invalid_query_parameters_are_rejected(fake_images: Images, query: str) -> None:
    answer = await fake_images.client.get(f"{IMAGES}?{query}")
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
    unknown = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"
    for method, path in (
        ("GET", ""), ("GET", "/events"), ("GET", "/content"), ("PUT", "/upload"),
        ("POST", "/upload"), ("POST", "/retry-upload"), ("DELETE", ""),
    ):  # fmt: skip
        other_answer = await images.client.send(method, target + path, other)
        problem = check_problem(other_answer, 404, "image_not_found")
        missing = await images.client.send(method, f"{IMAGES}/{unknown}{path}", other)
        assert check_problem(missing, 404, "image_not_found")["detail"] == problem["detail"]
    many = await images.client.get(f"{IMAGES}/events?image_ids={image_id}", other)
    check_problem(many, 404, "image_not_found")
    assert (await images.client.get(IMAGES, other)).json()["items"] == []
    for caller in (shop, admin):
        [listed] = (await images.client.get(IMAGES, caller)).json()["items"]
        assert listed["image_id"] == image_id


async def test_reading_and_writing_need_their_own_scopes(fake_make_images: MakeImages) -> None:
    images = fake_make_images(auth="required")
    reader = bearer(await key_for(images.gateway, tenant="shop", scopes=("jobs:read",)))
    writer = bearer(await key_for(images.gateway, tenant="shop", scopes=("jobs:write",)))
    image_id = (await images.client.send("POST", IMAGES, writer)).json()["image_id"]
    one = f"/{image_id}"
    for path in ("", one, f"{one}/content", f"{one}/events", f"/events?image_ids={image_id}"):
        answer = await images.client.get(IMAGES + path, writer)
        check_problem(answer, 403, "insufficient_scope")
    changes = [("POST", ""), ("DELETE", one), ("PUT", f"{one}/upload")]
    for method, path in [*changes, ("POST", f"{one}/retry-upload")]:
        answer = await images.client.send(method, IMAGES + path, reader)
        check_problem(answer, 403, "insufficient_scope")
    assert (await images.client.get(f"{IMAGES}/{image_id}", reader)).status == 200


async def test_cross_site_requests_change_nothing(fake_images: Images) -> None:
    cross_site = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    image_id = await fake_images.create()
    check_problem(await fake_images.client.send("POST", IMAGES, cross_site), 403, "foreign_origin")
    answer = await fake_images.upload(image_id, headers=cross_site)
    check_problem(answer, 403, "foreign_origin")
    await fake_images.check_untouched(image_id)
    answer = await fake_images.client.send("POST", IMAGES, {"host": "evil.example"})
    check_problem(answer, 421, "misdirected_request")


async def test_pages_of_allowed_origins_may_upload(fake_make_images: MakeImages) -> None:
    images = fake_make_images(allowed_origins="https://app.example")
    image_id = await images.create()
    page = {"origin": "https://app.example", "sec-fetch-site": "cross-site"}
    preflight = {**page, "access-control-request-method": "PUT"}
    response = await images.client.send("OPTIONS", f"{IMAGES}/{image_id}/upload", preflight)
    assert response.status == 204
    assert "PUT" in (response.header("access-control-allow-methods") or "")
    assert "X-Upload-Token" in (response.header("access-control-allow-headers") or "")
    assert (await images.upload(image_id, headers=page)).status == 202

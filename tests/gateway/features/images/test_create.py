"""`POST /v1/images`: validation and idempotency."""

from __future__ import annotations

import calendar
import re
import time
from typing import Any

import pytest

from tests.gateway.access_kit import bearer, key_for
from tests.gateway.conftest import check_problem
from tests.gateway.features.images.conftest import MakeImages
from tests.gateway.features.images.kit import IMAGES, JSON, KEYS, Images

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
    image_id = await images.create(WHOLE)
    view = await images.view(image_id)
    assert view["declared_type"] == "image/jpeg"
    for name in ("filename", "max_bytes", "metadata", "detect"):
        assert view[name] == WHOLE[name]


async def test_the_same_key_creates_one_image(images: Images) -> None:
    first = await images.post(WHOLE, idempotency_key="photo-7")
    again = await images.post(WHOLE, idempotency_key='"photo-7"')
    assert (first.status, again.status) == (201, 201)
    assert again.body == first.body
    assert (first.header("idempotent-replayed"), again.header("idempotent-replayed")) == (
        None,
        "true",
    )
    assert again.header("idempotency-replayed") == "true"
    assert again.header("location") == first.header("location")
    other = await images.post({"detect": "none"}, idempotency_key="photo-7")
    check_problem(other, 422, "idempotency_key_reused")
    assert len((await images.client.get(IMAGES)).json()["items"]) == 1


async def test_defaults_are_the_same_request(fake_images: Images) -> None:
    first = await fake_images.post(None, idempotency_key="k")
    again = await fake_images.post({"detect": "auto", "metadata": {}}, idempotency_key="k")
    assert again.json()["image_id"] == first.json()["image_id"]


async def test_the_key_of_a_deleted_image_creates_another(images: Images) -> None:
    first = await images.create(idempotency_key="k")
    await images.client.send("DELETE", f"{IMAGES}/{first}")
    answer = await images.post(idempotency_key="k")
    assert answer.status == 201
    assert answer.json()["image_id"] != first


MISFITS: dict[str, tuple[Any, str]] = {
    "no object": ([], ""),
    "unknown member": ({"size": 1}, "/size"),
    "type": ({"content_type": "image/svg+xml"}, "/content_type"),
    "type of a page": ({"content_type": "text/html"}, "/content_type"),
    "type a number": ({"content_type": 7}, "/content_type"),
    "empty name": ({"filename": ""}, "/filename"),
    "long name": ({"filename": "x" * 256}, "/filename"),
    "name with a line": ({"filename": "a\nb.jpg"}, "/filename"),
    "no bytes": ({"max_bytes": 0}, "/max_bytes"),
    "bytes as text": ({"max_bytes": "5"}, "/max_bytes"),
    "metadata a list": ({"metadata": []}, "/metadata"),
    "metadata too long": ({"metadata": {"x": "y" * 16_384}}, "/metadata"),
    "detect": ({"detect": "faces"}, "/detect"),
}


@pytest.mark.parametrize(("body", "pointer"), list(MISFITS.values()), ids=list(MISFITS))
async def test_an_invalid_request_changes_nothing(
    fake_images: Images, body: Any, pointer: str
) -> None:
    problem = check_problem(await fake_images.post(body), 422, "invalid_request")
    assert problem["errors"][0]["pointer"] == pointer
    assert await fake_images.redis.dbsize() == 0


@pytest.mark.parametrize("metadata", [16_384 - len('{"x":""}'), 0])
async def test_metadata_may_have_the_maximum_size(fake_images: Images, metadata: int) -> None:
    image_id = await fake_images.create({"metadata": {"x": "y" * metadata}})
    assert (await fake_images.view(image_id))["metadata"] == {"x": "y" * metadata}


@pytest.mark.parametrize(
    ("given", "kept"), [("IMAGE/JPG", "image/jpeg"), ("image/png;q=1", "image/png")]
)
async def test_content_types_are_normalised(fake_images: Images, given: str, kept: str) -> None:
    image_id = await fake_images.create({"content_type": given})
    assert (await fake_images.view(image_id))["declared_type"] == kept


async def test_malformed_requests_are_rejected(fake_images: Images) -> None:
    client = fake_images.client
    check_problem(await client.send("POST", IMAGES, JSON, b"{"), 400, "malformed_json")
    plain = {"content-type": "text/plain"}
    check_problem(await client.send("POST", IMAGES, plain, b"{}"), 415, "unsupported_media_type")
    check_problem(await fake_images.post({}, idempotency_key="ä"), 400, "invalid_idempotency_key")
    assert await fake_images.redis.dbsize() == 0


async def test_a_key_for_other_tasks_is_rejected(fake_make_images: MakeImages) -> None:
    images = fake_make_images(auth="required")
    key = await key_for(images.gateway, tasks=("chat",))
    answer = await images.client.send("POST", IMAGES, bearer(key))
    check_problem(answer, 403, "task_not_allowed")


async def test_an_image_id_ends_with_the_tail_of_its_tenant(fake_make_images: MakeImages) -> None:
    images = fake_make_images(auth="required")
    key = await key_for(images.gateway, tenant="shop")
    answer = await images.client.send("POST", IMAGES, bearer(key))
    [job_id] = [
        (await images.gateway.client.post({"task": "chat", "payload": {}}, bearer(key))).json()[
            "job_id"
        ]
    ]
    assert answer.json()["image_id"][-12:] == job_id[-12:]

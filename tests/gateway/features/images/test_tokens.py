"""Upload tokens: for one image, for a limited time, on behalf of the key that created it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.auth import callers as callers_module
from gateway.features.images.upload.tokens import UploadClaims, UploadTokens
from tests.gateway.features.images.conftest import MakeImages
from tests.support.gateway.access import bearer, client_at, id_of, key_for
from tests.support.gateway.harness import check_problem
from tests.support.gateway.images import BYTES, IMAGES, PNG, Images

pytestmark = pytest.mark.fakeredis_only

SECRET = "a secret that all gateways share"
UNKNOWN = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"


@pytest.fixture
async def signing(make_images: MakeImages) -> Images:
    """A gateway that signs for uploads, on every kind of Redis."""
    return make_images(image_upload_secret=SECRET)


async def create(images: Images, **headers: str) -> tuple[str, str]:
    answer = await images.post(**headers)
    assert answer.status == 201, answer
    view = answer.json()
    return view["image_id"], view["upload_token"]


async def test_a_token_permits_one_upload(signing: Images) -> None:
    for header, form in (
        ("x-upload-token", "{}"),
        ("authorization", "Bearer {}"),
        ("authorization", "bearer {}"),
    ):
        image_id, token = await create(signing)
        unread = signing.begin(image_id, [b"x"] * 3, {"expect": "100-continue"})
        refused = await unread.answer()
        check_problem(refused, 401, "upload_token_required")
        assert len(unread._chunks) == 3, "the body is not read"
        assert (refused.header("www-authenticate") or "").startswith("Bearer")
        await signing.client.send("DELETE", f"{IMAGES}/{image_id}")
        image_id, token = await create(signing)
        answer = await signing.upload(image_id, headers={header: form.format(token)})
        assert answer.status == 202
    first, again = [await signing.post(idempotency_key="k") for _ in range(2)]
    assert again.body == first.body, "a repeated create returns the same token"
    check_problem(await signing.upload(UNKNOWN), 401, "upload_token_required")
    token = UploadTokens(SECRET).issue(UploadClaims(UNKNOWN, int(time.time()) + 60, ""))
    answer = await signing.upload(UNKNOWN, headers={"x-upload-token": token})
    check_problem(answer, 404, "image_not_found")


async def test_invalid_tokens_are_rejected(make_images: MakeImages) -> None:
    signing = make_images(image_upload_secret=SECRET, image_upload_token_ttl_s=10)
    view = (await signing.post()).json()
    ends_s = time.mktime(time.strptime(view["expires_at"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert 8 <= ends_s - time.time() <= 10
    image_id, token = view["image_id"], view["upload_token"]
    now_s = int(time.time())
    parts = token.split("~")
    later = "~".join([parts[0], parts[1], str(int(parts[2]) + 1), *parts[3:]])
    other_secret = UploadTokens("another secret").issue(UploadClaims(image_id, now_s + 60, ""))
    flipped = token[:-1] + ("A" if token[-1] != "A" else "B")
    expired = UploadTokens(SECRET).issue(UploadClaims(image_id, now_s - 1, ""))
    _, other_image = await create(signing)
    for bad, status, code in (
        *((bad, 401, "invalid_upload_token") for bad in (later, other_secret, flipped, token[:-1])),
        *(
            (bad, 401, "invalid_upload_token")
            for bad in (token + "A", "x", "ä", "up1~~~~", f"{token} ")
        ),
        (expired, 401, "upload_token_expired"),
        (other_image, 403, "upload_token_mismatch"),
    ):
        answer = await signing.upload(image_id, headers={"x-upload-token": bad})
        check_problem(answer, status, code)
    twice = [("x-upload-token", token), ("x-upload-token", token), *PNG.items()]
    answer = await signing.client.send("PUT", f"{IMAGES}/{image_id}/upload", twice, BYTES)
    check_problem(answer, 401, "invalid_upload_token")
    await signing.check_untouched(image_id)


async def test_a_token_replaces_the_key_for_the_upload_only(make_images: MakeImages) -> None:
    images = make_images(image_upload_secret=SECRET, auth="required")
    key = await key_for(images.gateway, tenant="shop", scopes=("jobs:write",))
    created = await images.client.send("POST", IMAGES, bearer(key))
    image_id, token = created.json()["image_id"], created.json()["upload_token"]
    phone = client_at(images.gateway)
    target = f"{IMAGES}/{image_id}/upload"
    try:
        # The key that created the image is not accepted as a token.
        answer = await phone.send("PUT", target, {**PNG, **bearer(key)}, BYTES)
        check_problem(answer, 401, "invalid_upload_token")
        headers = {**PNG, "x-upload-token": token}
        assert (await phone.send("PUT", target, headers, BYTES)).status == 202
        # The token permits nothing else.
        answer = await phone.send("GET", f"{IMAGES}/{image_id}", {"x-upload-token": token})
        check_problem(answer, 401, "key_required")
        check_problem(await phone.send("POST", IMAGES, bearer(token)), 401, "invalid_key")
    finally:
        await phone.close()
    record = await images.services.reader.record(image_id)
    assert record is not None
    assert (record.tenant, record.job_id[-12:]) == ("shop", image_id[-12:])


async def test_revoking_a_key_revokes_its_tokens(make_images: MakeImages, monkeypatch: Any) -> None:
    monkeypatch.setattr(callers_module, "CACHE_TTL_S", 0.0)
    images = make_images(image_upload_secret=SECRET, auth="required")
    key = await key_for(images.gateway, tenant="shop")
    created = await images.client.send("POST", IMAGES, bearer(key))
    await images.state.access.keys.revoke(id_of(key))
    headers = {"x-upload-token": created.json()["upload_token"]}
    answer = await images.upload(created.json()["image_id"], headers=headers)
    check_problem(answer, 401, "invalid_upload_token")


async def test_uploads_count_for_the_key_that_created_them(make_images: MakeImages) -> None:
    images = make_images(image_upload_secret=SECRET, auth="required")
    key = await key_for(images.gateway, tenant="shop", max_jobs=1)
    answers = []
    for _ in range(2):
        created = (await images.client.send("POST", IMAGES, bearer(key))).json()
        headers = {"x-upload-token": created["upload_token"]}
        answers.append(await images.upload(created["image_id"], headers=headers))
    assert answers[0].status == 202
    check_problem(answers[1], 429, "quota_exceeded")
    assert len(images.spooled()) == 1


async def test_without_a_secret_uploads_need_a_key(make_images: MakeImages) -> None:
    images = make_images(auth="required")
    writer = await key_for(images.gateway, tenant="shop", scopes=("jobs:write",))
    reader = await key_for(images.gateway, tenant="shop", scopes=("jobs:read",))
    chatter = await key_for(images.gateway, tenant="shop", tasks=("chat",))
    created = await images.client.send("POST", IMAGES, bearer(writer))
    assert "upload_token" not in created.json()
    image_id = created.json()["image_id"]
    check_problem(await images.upload(image_id), 401, "key_required")
    check_problem(await images.upload(image_id, headers=bearer(reader)), 403, "insufficient_scope")
    check_problem(await images.upload(image_id, headers=bearer(chatter)), 403, "task_not_allowed")
    await images.check_untouched(image_id)
    assert (await images.upload(image_id, headers=bearer(writer))).status == 202

"""Uploads, from a body or a form, with a key or a token: accepted once and complete."""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import Any

import pytest

from sluice.common.observability.heartbeats import Heartbeat, ImagesReading
from sluice.gateway.auth import callers as callers_module
from sluice.gateway.features.images.upload.tokens import UploadClaims, UploadTokens
from tests.gateway.features.images.conftest import MakeImages
from tests.support.gateway.access import bearer, client_at, id_of, key_for
from tests.support.gateway.harness import check_problem
from tests.support.gateway.images import BYTES, FORM, IMAGES, KEYS, PNG, UNKNOWN, Images, form
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only


@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_a_body_is_accepted(images: Images, method: str) -> None:
    image_id = await images.create()
    answer = await images.upload(image_id, method=method)
    assert answer.status == 202
    view = answer.json()
    assert set(view) == {"image_id", "status", "job_id"}
    assert (view["image_id"], view["status"]) == (image_id, "processing")
    assert answer.header("location") == f"{IMAGES}/{image_id}"
    record = await images.services.reader.record(image_id)
    assert record is not None
    assert (record.status.value, record.job_id) == ("processing", view["job_id"])
    assert (record.uploaded_type, record.source_bytes) == ("image/png", len(BYTES))
    assert record.source_sha256 == hashlib.sha256(BYTES).hexdigest()
    [file] = images.spooled()
    assert file == images.services.spool.path(image_id, record.upload_id)
    assert file.read_bytes() == BYTES
    assert await images.redis.get(KEYS.upload(image_id)) == b"claimed"
    [(_, message)] = await images.redis.xrange(images.gateway.keys.queue)
    assert message[b"job_id"].decode() == view["job_id"]
    assert message[b"task"] == b"tool"
    names = {"image_id": image_id, "upload_id": record.upload_id}
    assert json.loads(message[b"payload"]) == {"tool": "image.process", "args": names}


async def test_forms_and_any_chunks_are_accepted(images: Images) -> None:
    for kind in ("image/png", None):
        image_id = await images.create()
        assert (await images.upload(image_id, form(kind=kind), FORM, "POST")).status == 202
        view = await images.view(image_id)
        assert view["uploaded_type"] == (kind or "application/octet-stream")
        assert view["source_bytes"] == len(BYTES)
    for kind in ("", "application/octet-stream", "image/heic", "IMAGE/JPG; q=1"):
        image_id = await images.create()
        headers = [("content-type", kind)] if kind else []
        answer = await images.client.send("PUT", f"{IMAGES}/{image_id}/upload", headers, BYTES)
        assert answer.status == 202, answer
    data = os.urandom(3000) + b"\r\n--xYz" + b"\r\n--" + os.urandom(500)
    large, whole = os.urandom(5_000_000), form(data)
    sizes = [(whole, FORM, size) for size in (1, 7, 1000, 65_536)]
    for body, headers, size in (*sizes, (large, {}, 70_000)):
        image_id = await images.create()
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        assert (await images.begin(image_id, chunks, headers).answer()).status == 202
    stored = [file.read_bytes() for file in images.spooled()]
    assert sorted(stored, key=len) == [data] * 4 + [BYTES] * 6 + [large]


async def test_a_second_upload_is_rejected_before_it_is_read(images: Images) -> None:
    """The rest is read after the response: closing the connection would discard the response."""
    image_id = await images.uploaded()
    before = await images.gateway.snapshot()
    second = images.begin(image_id, [b"x" * 1000] * 5, {"expect": "100-continue"})
    answer = await second.answer()
    check_problem(answer, 409, "already_uploaded")
    assert len(second._chunks) == 5, "the body was read"
    # The unread body could be taken for the next request.
    assert answer.header("connection") == "close"
    third = images.begin(image_id, [b"x" * 1000] * 5)
    third.take.clear()
    await third.held_up.wait()
    assert len(third._chunks) == 5, "the response comes before the body is read"
    third.take.set()
    answer = await third.answer()
    check_problem(answer, 409, "already_uploaded")
    assert (len(third._chunks), answer.header("connection")) == (0, None)
    assert await images.gateway.snapshot() == before
    assert len(images.spooled()) == 1


async def test_an_upload_is_rejected_while_another_is_running(images: Images) -> None:
    image_id = await images.create()
    first = images.begin(image_id, [])  # no chunk is sent yet
    await eventually(lambda: images.redis.exists(KEYS.upload(image_id)))
    check_problem(await images.upload(image_id), 409, "already_uploaded")
    first._hung_up.set()
    check_problem(await first.answer(), 400, "incomplete_body")
    await images.check_free(image_id)


# -- rejected uploads, and the order of checks -----------------------------------------------------


async def test_an_unknown_image_is_checked_first(images: Images) -> None:
    for image_id in (UNKNOWN, "x", "../../etc", UNKNOWN.upper()):
        headers = {"content-type": "text/html", "content-length": str(1 << 40)}
        answer = await images.begin(image_id, [b""], headers).answer()
        check_problem(answer, 404, "image_not_found" if "/" not in image_id else None)
    assert await images.redis.dbsize() == 0


async def test_length_type_and_state_are_checked_in_this_order(images: Images) -> None:
    image_id = await images.uploaded()
    long = {"content-type": "text/html", "content-length": str((32 << 20) + 1)}
    check_problem(await images.begin(image_id, [b""], long).answer(), 413, "body_too_large")
    page = {"content-type": "text/html", "content-length": "3"}
    answer = await images.begin(image_id, [b"abc"], page).answer()
    check_problem(answer, 415, "unsupported_media_type")
    assert "image/jpeg" in (answer.header("accept-post") or "")
    check_problem(await images.upload(image_id), 409, "already_uploaded")


HEIC = {"content-type": "image/heif"}


async def test_types_that_no_worker_supports_are_rejected(images: Images) -> None:
    """Also those of a file in a form. A body without a type is checked by the worker."""
    image_id, now_ms = await images.create(), int(time.time() * 1000)
    await images.gateway.heartbeat(
        Heartbeat("w1", seen_ms=now_ms, images=ImagesReading(formats=["png", "jpeg"])),
        Heartbeat("w2", seen_ms=now_ms, images=ImagesReading(formats=["gif"])),
        Heartbeat("w3", seen_ms=now_ms, images=ImagesReading()),  # an older version
    )
    for data, headers in ((BYTES, HEIC), (form(kind="image/heic"), FORM)):
        answer = await images.upload(image_id, data, headers)
        check_problem(answer, 415, "unsupported_media_type")
        assert "No worker processes image/hei" in answer.json()["detail"]
        accepted = "image/jpeg, image/png, image/gif, application/octet-stream"
        assert answer.header("accept-post") == accepted
        await images.check_untouched(image_id)
    await images.check_free(image_id)
    for headers in ({"content-type": "image/jpg"}, {"content-type": "application/octet-stream"}):
        assert (await images.upload(await images.create(), BYTES, headers)).status == 202


async def test_any_type_is_accepted_if_no_worker_reports_formats(images: Images) -> None:
    now_ms = int(time.time() * 1000)
    await images.gateway.heartbeat(Heartbeat("w1", seen_ms=now_ms, images=ImagesReading()))
    assert (await images.upload(await images.create(), BYTES, HEIC)).status == 202


async def test_no_type_is_accepted_if_no_format_is_installed(images: Images) -> None:
    now_ms = int(time.time() * 1000)
    beat = Heartbeat("w1", seen_ms=now_ms, images=ImagesReading(formats=[]))
    await images.gateway.heartbeat(beat)
    answer = await images.upload(await images.create(), BYTES, PNG)
    check_problem(answer, 415, "unsupported_media_type")


async def test_the_length_is_limited(make_images: MakeImages) -> None:
    images = make_images(image_upload_hard_max=2000)
    image_id = await images.create()
    for size in ("2001", "0002001", "9" * 40):
        answer = await images.begin(image_id, [b""], {"content-length": size}).answer()
        check_problem(answer, 413, "body_too_large")
    await images.check_untouched(image_id)
    assert (await images.upload(image_id, b"x" * 2000)).status == 202
    own = await images.create({"max_bytes": 1000})
    check_problem(await images.upload(own, b"x" * 1001), 413, "body_too_large")
    assert (await images.upload(own, b"x" * 1000)).status == 202
    form_id = await images.create({"max_bytes": 1000})
    check_problem(await images.upload(form_id, form(b"x" * 1001), FORM), 413, "body_too_large")
    assert (await images.upload(form_id, form(b"x" * 1000), FORM)).status == 202
    for most, members in ((100_000, {"max_bytes": 20_000}), (20_000, {})):
        images = make_images(image_upload_hard_max=most)
        image_id = await images.create(members)
        before = images.spooled()
        answer = await images.begin(image_id, [b"x" * 1000] * 99).answer()
        check_problem(answer, 413, "body_too_large")
        assert images.spooled() == before
        assert (await images.upload(image_id)).status == 202, "the failed upload left nothing"


UNFIT: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "empty": (b"", {"content-length": "0"}, 400, "empty_upload"),
    "empty file": (form(b""), FORM, 400, "empty_upload"),
    "no file": (form(name="picture"), FORM, 400, "file_missing"),
    "cut off": (form()[:-4], FORM, 400, "malformed_multipart"),
    "no form": (BYTES, FORM, 400, "malformed_multipart"),
    "file of another type": (form(kind="image/svg+xml"), FORM, 415, "unsupported_media_type"),
    "two files": (
        form()[: -len("--xYzZY--\r\n")] + form(), FORM, 400, "malformed_multipart"
    ),
    "no boundary": (form(), {"content-type": "multipart/form-data"}, 400, "malformed_multipart"),
    "long boundary": (
        form(), {"content-type": f"multipart/form-data; boundary={'x' * 240}"}, 415,
        "unsupported_media_type",
    ),
    "packed": (BYTES, {"content-encoding": "gzip"}, 415, "unsupported_media_type"),
    "a page": (BYTES, {"content-type": "text/html"}, 415, "unsupported_media_type"),
    "as curl -d": (
        BYTES, {"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"
    ),
}  # fmt: skip


async def test_invalid_uploads_are_rejected(images: Images) -> None:
    for data, headers, status, code in UNFIT.values():
        image_id = await images.create()
        check_problem(await images.upload(image_id, data, headers), status, code)
        await images.check_untouched(image_id)
    await images.check_free(image_id)


# -- uploads that end before their job is created --------------------------------------------------


async def test_an_upload_that_ends_early_leaves_nothing(make_images: MakeImages) -> None:
    images = make_images()
    for size in (0, 10, 3_000_000):
        image_id = await images.create()
        exchange = images.begin_unfinished(image_id, [b"x" * size])
        exchange.hang_up_soon()
        check_problem(await exchange.answer(), 400, "incomplete_body")
        await images.check_untouched(image_id)
    exchange = images.begin(image_id, [])
    await eventually(lambda: images.redis.exists(KEYS.upload(image_id)))
    exchange.task.cancel()  # the server stops
    check_problem(await exchange.answer(), 503, "store_unavailable")
    await images.check_free(image_id)
    hurried = make_images(image_upload_timeout_s=0.05)
    image_id = await hurried.create()
    check_problem(await hurried.begin(image_id, []).answer(), 408, "request_timeout")
    assert not await images.redis.exists(KEYS.upload(image_id))


async def test_a_full_queue_or_pressure_reject_the_upload(make_images: MakeImages) -> None:
    images = make_images(backpressure_max_backlog=1)
    await images.gateway.create()
    image_id = await images.create()
    answer = await images.upload(image_id)
    check_problem(answer, 429, "queue_full")
    assert int(answer.header("retry-after") or 0) >= 1
    images.state.pressure.refusing = True
    upload = images.begin(image_id, [b"x"] * 3, {"expect": "100-continue"})
    check_problem(await upload.answer(), 503, "under_pressure")
    assert len(upload._chunks) == 3
    images.state.pressure.refusing = False
    assert not await images.redis.exists(KEYS.upload(image_id))
    assert images.spooled() == []
    await images.redis.delete(images.gateway.keys.queue)
    await images.check_free(image_id)


SECRET = "a secret that all gateways share"


@pytest.fixture
async def signing(make_images: MakeImages) -> Images:
    """A gateway that signs for uploads, on every kind of Redis."""
    return make_images(image_upload_secret=SECRET)


async def create_signed(images: Images, **headers: str) -> tuple[str, str]:
    answer = await images.post(**headers)
    assert answer.status == 201, answer
    view = answer.json()
    return view["image_id"], view["upload_token"]


async def test_a_token_permits_one_upload(signing: Images) -> None:
    for header, value in (
        ("x-upload-token", "{}"),
        ("authorization", "Bearer {}"),
        ("authorization", "bearer {}"),
    ):
        image_id, token = await create_signed(signing)
        unread = signing.begin(image_id, [b"x"] * 3, {"expect": "100-continue"})
        refused = await unread.answer()
        check_problem(refused, 401, "upload_token_required")
        assert len(unread._chunks) == 3, "the body is not read"
        assert (refused.header("www-authenticate") or "").startswith("Bearer")
        await signing.client.send("DELETE", f"{IMAGES}/{image_id}")
        image_id, token = await create_signed(signing)
        answer = await signing.upload(image_id, headers={header: value.format(token)})
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
    _, other_image = await create_signed(signing)
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


async def test_a_token_has_the_limits_of_its_key(make_images: MakeImages, monkeypatch: Any) -> None:
    """Uploads count for the key that created them, and end with it."""
    monkeypatch.setattr(callers_module, "CACHE_TTL_S", 0.0)
    images = make_images(image_upload_secret=SECRET, auth="required")
    key = await key_for(images.gateway, tenant="shop", max_jobs=1)
    answers = []
    for _ in range(3):
        created = (await images.client.send("POST", IMAGES, bearer(key))).json()
        if len(answers) == 2:
            await images.state.access.keys.revoke(id_of(key))
        headers = {"x-upload-token": created["upload_token"]}
        answers.append(await images.upload(created["image_id"], headers=headers))
    assert answers[0].status == 202
    check_problem(answers[1], 429, "quota_exceeded")
    check_problem(answers[2], 401, "invalid_upload_token")
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

"""Uploads, from a body or a form: accepted once and complete; failed ones leave nothing."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from tests.gateway.features.images.conftest import MakeImages
from tests.support.gateway.harness import check_problem
from tests.support.gateway.images import BYTES, FORM, IMAGES, KEYS, Images, form
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

UNKNOWN = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"


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


@pytest.mark.parametrize("kind", ["image/png", None])
async def test_a_form_is_accepted(images: Images, kind: str | None) -> None:
    image_id = await images.create()
    answer = await images.upload(image_id, form(kind=kind), FORM, "POST")
    assert answer.status == 202, answer
    [file] = images.spooled()
    assert file.read_bytes() == BYTES
    view = await images.view(image_id)
    assert view["uploaded_type"] == (kind or "application/octet-stream")
    assert view["source_bytes"] == len(BYTES)


async def test_a_form_in_small_chunks_is_accepted(images: Images) -> None:
    data = os.urandom(3000) + b"\r\n--xYz" + b"\r\n--" + os.urandom(500)
    whole = form(data)
    for piece in (1, 7, 1000, 65_536):
        image_id = await images.create()
        chunks = [whole[at : at + piece] for at in range(0, len(whole), piece)]
        assert (await images.begin(image_id, chunks, FORM).answer()).status == 202
    large = os.urandom(5_000_000)
    image_id = await images.create()
    chunks = [large[at : at + 70_000] for at in range(0, len(large), 70_000)]
    assert (await images.begin(image_id, chunks).answer()).status == 202
    stored = [file.read_bytes() for file in images.spooled()]
    assert sorted(stored, key=len) == [data] * 4 + [large]


async def test_image_and_binary_content_types_are_accepted(images: Images) -> None:
    for kind in ("", "application/octet-stream", "image/heic", "IMAGE/JPG; q=1"):
        image_id = await images.create()
        headers = [("content-type", kind)] if kind else []
        answer = await images.client.send("PUT", f"{IMAGES}/{image_id}/upload", headers, BYTES)
        assert answer.status == 202, answer


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


async def test_the_declared_length_is_limited(make_images: MakeImages) -> None:
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


@pytest.mark.parametrize("own", [True, False])
async def test_a_body_without_a_length_is_limited(make_images: MakeImages, own: bool) -> None:
    images = make_images(image_upload_hard_max=100_000 if own else 20_000)
    image_id = await images.create({"max_bytes": 20_000} if own else {})
    answer = await images.begin(image_id, [b"x" * 1000] * 99).answer()
    check_problem(answer, 413, "body_too_large")
    await images.check_free(image_id)


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

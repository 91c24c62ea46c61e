"""`GET /v1/images/{id}/content`: the stored image, or a redirect to it."""

from __future__ import annotations

import hashlib
import shutil
from typing import Any

import pytest

from common.contracts.images import ImageStatus
from common.features.images.records import ImageRecord
from common.features.images.storage.base import StorageError
from gateway.features.images.content import disposition
from tests.gateway.conftest import check_problem
from tests.gateway.features.images.kit import IMAGES, KEYS, STORED, Images


async def fetch(images: Images, image_id: str, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await images.client.get(f"{IMAGES}/{image_id}/content", named)


async def test_the_stored_bytes_are_served(images: Images) -> None:
    image_id = await images.uploaded(filename="See.jpg")
    data = STORED * 40_000
    await images.succeed(image_id, data)
    answer = await fetch(images, image_id)
    assert (answer.status, answer.body) == (200, data)
    assert answer.header("content-type") == "image/webp"
    assert answer.header("content-length") == str(len(data))
    assert answer.header("etag") == f'"{hashlib.md5(data).hexdigest()}"'
    assert answer.header("x-content-type-options") == "nosniff"
    assert answer.header("content-disposition") == 'inline; filename="See.webp"'
    assert answer.header("cache-control") == "private, max-age=3600"
    view = await images.view(image_id)
    assert view["etag"] == (answer.header("etag") or "").strip('"')
    assert view["sha256"] == hashlib.sha256(answer.body).hexdigest()
    assert view["file_size"] == len(answer.body)


async def test_a_known_etag_gets_304(fake_images: Images) -> None:
    image_id = await fake_images.uploaded()
    await fake_images.succeed(image_id)
    etag = (await fetch(fake_images, image_id)).header("etag")
    for known in (etag, f'W/{etag}, "x"', "*"):
        answer = await fetch(fake_images, image_id, if_none_match=known)
        assert (answer.status, answer.body, answer.header("etag")) == (304, b"", etag)
    assert (await fetch(fake_images, image_id, if_none_match='"x"')).status == 200


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


async def test_content_is_served_after_the_status_expired(images: Images) -> None:
    image_id = await images.uploaded()
    await images.succeed(image_id)
    await images.redis.delete(KEYS.status(image_id), KEYS.upload(image_id))
    assert (await fetch(images, image_id)).body == STORED


async def test_a_missing_object_gets_410(fake_images: Images) -> None:
    image_id = await fake_images.uploaded()
    await fake_images.succeed(image_id)
    directory: Any = fake_images.services.storage
    shutil.rmtree(directory.directory)
    check_problem(await fetch(fake_images, image_id), 410, "content_gone")


async def test_unavailable_storage_gets_503(fake_images: Images, monkeypatch: Any) -> None:
    async def away(*args: Any) -> Any:
        raise StorageError("the bucket does not answer")

    image_id = await fake_images.uploaded()
    await fake_images.succeed(image_id)
    monkeypatch.setattr(fake_images.services.storage, "read", away)
    answer = await fetch(fake_images, image_id)
    problem = check_problem(answer, 503, "storage_unavailable")
    assert "bucket" not in problem["detail"], "the cause is only logged"


async def test_an_object_with_a_url_is_redirected(fake_images: Images, monkeypatch: Any) -> None:
    async def presigned_url(key: str, seconds: int) -> str:
        return f"https://s3.example/{key}?for={seconds}"

    image_id = await fake_images.uploaded()
    await fake_images.succeed(image_id)
    monkeypatch.setattr(fake_images.services.storage, "url", presigned_url)
    answer = await fetch(fake_images, image_id)
    assert (answer.status, answer.body) == (307, b"")
    assert answer.header("location") == f"https://s3.example/images/{image_id}.webp?for=300"
    assert answer.header("cache-control") == "no-store"


async def test_an_unsafe_content_type_is_replaced(fake_images: Images) -> None:
    image_id = await fake_images.uploaded()
    await fake_images.succeed(image_id)
    await fake_images.redis.hset(KEYS.record(image_id), "content_type", "text/html")  # type: ignore[misc]
    answer = await fetch(fake_images, image_id)
    assert answer.header("content-type") == "application/octet-stream"


@pytest.mark.parametrize("etag", ["", 'x"\r\nSet-Cookie: a=b', "\u20ac", "a b", "x" * 1000])
async def test_an_invalid_etag_is_replaced(fake_images: Images, etag: str) -> None:
    image_id = await fake_images.uploaded()
    await fake_images.succeed(image_id)
    await fake_images.redis.hset(KEYS.record(image_id), "etag", etag)  # type: ignore[misc]
    answer = await fetch(fake_images, image_id)
    assert (answer.status, answer.body) == (200, STORED)
    assert answer.header("etag") == f'"{hashlib.sha256(STORED).hexdigest()}"'


async def test_a_client_may_disconnect_during_the_download(fake_images: Images) -> None:
    image_id = await fake_images.uploaded()
    await fake_images.succeed(image_id, STORED * 100_000)
    exchange = fake_images.client.begin("GET", f"{IMAGES}/{image_id}/content")
    await exchange.start()
    await exchange.chunk()
    await exchange.abandon()


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

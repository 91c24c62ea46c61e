"""CREATE: the written data, its lifetime, and Idempotency-Keys."""

from __future__ import annotations

import asyncio
import datetime

import pytest

from common.contracts.images import Detect
from common.features.images.types import ImageAnswer
from tests.common.features.images.kit import (
    ALREADY,
    OK,
    RECORD_TTL_S,
    STATUS_TTL_S,
    Gallery,
    new_image,
)

REUSED = ImageAnswer.REUSED
ONCE = {
    "idempotency_key": "{0}:idempotency.img:k",
    "fingerprint": "print",
    "idempotency_ttl_s": 600,
}


async def test_a_new_image_is_queued_and_has_a_record(gallery: Gallery) -> None:
    before = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    image_id = await gallery.create(
        filename="a cat.jpg",
        declared_type="image/jpeg",
        max_bytes=1000,
        metadata=b'{"album":"cats"}',
        detect=Detect.NONE,
        tenant="acme",
        tail="7",
    )
    shown = await gallery.status(image_id)
    assert set(shown) == {"stage", "progress", "updated_at"}
    assert (shown["stage"], shown["progress"]) == ("queued", "0")
    said = datetime.datetime.strptime(shown["updated_at"] + "+0000", "%Y-%m-%dT%H:%M:%SZ%z")
    assert before <= said <= before + datetime.timedelta(seconds=30)
    record = await gallery.record(image_id)
    assert record.pop("created_at") == record.pop("updated_at") == shown["updated_at"]
    assert record == {
        "image_id": image_id,
        "status": "queued",
        "filename": "a cat.jpg",
        "declared_type": "image/jpeg",
        "max_bytes": "1000",
        "metadata": '{"album":"cats"}',
        "detect": "none",
        "tenant": "acme",
        "tail": "7",
        "ttl_s": str(RECORD_TTL_S),
    }
    assert await gallery.guard(image_id) is None
    assert await gallery.client.zrange(gallery.keys.index(), 0, -1) == [image_id.encode()]
    assert await gallery.client.zrange(gallery.keys.index("acme"), 0, -1) == [image_id.encode()]


async def test_an_image_without_an_upload_expires_with_its_status(gallery: Gallery) -> None:
    image_id = await gallery.create(tenant="acme")
    assert await gallery.ttls(image_id) == (STATUS_TTL_S, STATUS_TTL_S, -2)
    assert await gallery.without_ttl() == []


async def test_an_image_without_a_tenant_is_in_one_index_only(gallery: Gallery) -> None:
    await gallery.create()
    index = gallery.keys.index()
    assert await gallery.client.keys(f"{index}*") == [index.encode()]


async def test_a_repeated_request_returns_the_same_image(gallery: Gallery) -> None:
    first, second = new_image(**ONCE), new_image(**ONCE)
    assert (await gallery.store.create(first)).facts == {"image_id": first.image_id}
    again = await gallery.store.create(second)
    assert (again.answer, again.facts) == (ALREADY, {"image_id": first.image_id})
    assert await gallery.record(second.image_id) == {}
    assert 0 < await gallery.client.ttl(ONCE["idempotency_key"]) <= 600


async def test_another_request_with_the_same_key_is_refused(gallery: Gallery) -> None:
    await gallery.create(**ONCE)
    before = await gallery.snapshot()
    other = await gallery.store.create(new_image(**{**ONCE, "fingerprint": "another"}))
    assert other.answer is REUSED
    assert await gallery.snapshot() == before


async def test_a_key_whose_image_is_gone_creates_a_new_one(gallery: Gallery) -> None:
    image_id = await gallery.create(**ONCE)
    await gallery.store.delete(image_id)
    second = new_image(**ONCE)
    made = await gallery.store.create(second)
    assert (made.answer, made.facts) == (OK, {"image_id": second.image_id})
    again = await gallery.store.create(new_image(**ONCE))
    assert (again.answer, again.facts) == (ALREADY, {"image_id": second.image_id})


async def test_a_lost_reply_creates_nothing_twice(doubting: Gallery) -> None:
    new = new_image(tenant="acme", **ONCE)
    made = await doubting.store.create(new)
    assert (made.answer, made.facts) == (OK, {"image_id": new.image_id})
    assert await doubting.client.zcard(doubting.keys.index()) == 1


async def test_a_repetition_does_not_reset_an_image(gallery: Gallery) -> None:
    new = new_image()
    await gallery.store.create(new)
    upload_id = await gallery.claim(new.image_id)
    before = await gallery.snapshot()
    assert (await gallery.store.create(new)).answer is OK
    assert await gallery.snapshot() == before
    assert (await gallery.record(new.image_id))["upload_id"] == upload_id


async def test_concurrent_requests_with_one_key_create_one_image(gallery: Gallery) -> None:
    wanted = [new_image(**ONCE) for _ in range(20)]
    outcomes = await asyncio.gather(*(gallery.store.create(new) for new in wanted))
    assert [outcome.answer for outcome in outcomes].count(OK) == 1
    assert len({outcome.facts["image_id"] for outcome in outcomes}) == 1
    assert await gallery.client.zcard(gallery.keys.index()) == 1


def test_an_idempotency_key_needs_a_fingerprint_and_a_ttl() -> None:
    for missing in ("fingerprint", "idempotency_ttl_s"):
        with pytest.raises(ValueError, match="Idempotency-Key"):
            new_image(**{name: value for name, value in ONCE.items() if name != missing})


async def test_expired_images_are_removed_from_the_index(gallery: Gallery) -> None:
    """A few with each new image: no call scans the whole index."""
    gone = [await gallery.create(tenant="acme") for _ in range(24)]
    for image_id in gone:
        await gallery.client.delete(gallery.keys.record(image_id))
    index = gallery.keys.index("acme")
    left = 24
    for _ in range(40):
        await gallery.create(tenant="acme")
        members = {raw.decode() for raw in await gallery.client.zrange(index, 0, -1)}
        still = len(members & set(gone))
        assert left - 4 <= still <= left
        left = still
        if left == 0:
            break
    assert left == 0
    members = await gallery.client.zrange(gallery.keys.index(), 0, -1)
    everybody = {raw.decode() for raw in members}
    assert not everybody & set(gone)


async def test_existing_images_stay_in_the_index(gallery: Gallery) -> None:
    made = [await gallery.create() for _ in range(30)]
    members = await gallery.client.zrange(gallery.keys.index(), 0, -1)
    assert {raw.decode() for raw in members} == set(made)


async def test_entries_older_than_any_record_leave_the_index(gallery: Gallery) -> None:
    index = gallery.keys.index()
    await gallery.client.zadd(index, {f"old-{number}": 1 + number for number in range(50)})
    image_id = await gallery.create()
    assert await gallery.client.zrange(index, 0, -1) == [image_id.encode()]

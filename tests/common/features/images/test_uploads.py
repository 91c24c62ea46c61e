"""CREATE, the upload guard, REOPEN and DELETE."""

from __future__ import annotations

import asyncio
import datetime

import pytest

from sluice.common.contracts.images import Detect, Stage
from sluice.common.features.images.types import ImageAnswer
from tests.support.store.images import (
    ALREADY,
    CONFLICT,
    GROUP,
    HOLD_MS,
    MISSING,
    OK,
    RECORD_TTL_S,
    STATUS_TTL_S,
    ImageHarness,
    failure_fields,
    fresh_upload,
    new_image,
)

REUSED = ImageAnswer.REUSED
ONCE = {
    "idempotency_key": "{0}:idempotency.img:k",
    "fingerprint": "print",
    "idempotency_ttl_s": 600,
}


async def test_a_new_image_is_queued_and_has_a_record(images: ImageHarness) -> None:
    before = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    image_id = await images.create(
        filename="a cat.jpg",
        declared_type="image/jpeg",
        max_bytes=1000,
        metadata=b'{"album":"cats"}',
        detect=Detect.NONE,
        tenant="acme",
        tail="7",
    )
    shown = await images.status(image_id)
    assert set(shown) == {"stage", "progress", "updated_at"}
    assert (shown["stage"], shown["progress"]) == ("queued", "0")
    said = datetime.datetime.strptime(shown["updated_at"] + "+0000", "%Y-%m-%dT%H:%M:%SZ%z")
    assert before <= said <= before + datetime.timedelta(seconds=30)
    record = await images.record(image_id)
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
    assert await images.guard(image_id) is None
    assert await images.client.zrange(images.keys.index(), 0, -1) == [image_id.encode()]
    assert await images.client.zrange(images.keys.index("acme"), 0, -1) == [image_id.encode()]


async def test_an_image_without_an_upload_expires_with_its_status(images: ImageHarness) -> None:
    image_id = await images.create()
    assert await images.ttls(image_id) == (STATUS_TTL_S, STATUS_TTL_S, -2)
    assert await images.without_ttl() == []
    index = images.keys.index()  # without a tenant it is in one index only
    assert await images.client.keys(f"{index}*") == [index.encode()]


async def test_a_repeated_request_returns_the_same_image(images: ImageHarness) -> None:
    first, second = new_image(**ONCE), new_image(**ONCE)
    assert (await images.store.create(first)).facts == {"image_id": first.image_id}
    async with images.unchanged():
        again = await images.store.create(second)
        assert (again.answer, again.facts) == (ALREADY, {"image_id": first.image_id})
        other = await images.store.create(new_image(**{**ONCE, "fingerprint": "another"}))
        assert other.answer is REUSED
    assert 0 < await images.client.ttl(ONCE["idempotency_key"]) <= 600
    # A key whose image is gone creates a new one.
    await images.store.delete(first.image_id)
    made = await images.store.create(second)
    assert (made.answer, made.facts) == (OK, {"image_id": second.image_id})
    again = await images.store.create(new_image(**ONCE))
    assert (again.answer, again.facts) == (ALREADY, {"image_id": second.image_id})


async def test_a_repetition_does_not_reset_an_image(images: ImageHarness) -> None:
    for new in (new_image(), new_image(tenant="acme", **ONCE)):
        await images.store.create(new)
        upload_id = await images.claim(new.image_id)
        async with images.unchanged():
            made = await images.store.create(new)
            assert (made.answer, made.facts) == (OK, {"image_id": new.image_id})
        await images.has(new.image_id, upload_id=upload_id)


async def test_concurrent_requests_with_one_key_create_one_image(images: ImageHarness) -> None:
    wanted = [new_image(**ONCE) for _ in range(20)]
    outcomes = await asyncio.gather(*(images.store.create(new) for new in wanted))
    assert [outcome.answer for outcome in outcomes].count(OK) == 1
    assert len({outcome.facts["image_id"] for outcome in outcomes}) == 1
    assert await images.client.zcard(images.keys.index()) == 1


def test_an_idempotency_key_needs_a_fingerprint_and_a_ttl() -> None:
    for missing in ("fingerprint", "idempotency_ttl_s"):
        with pytest.raises(ValueError, match="Idempotency-Key"):
            new_image(**{name: value for name, value in ONCE.items() if name != missing})


async def test_expired_images_are_removed_from_the_index(images: ImageHarness) -> None:
    """A few with each new image: no call scans the whole index."""
    gone = {await images.create(tenant="acme") for _ in range(24)}
    await images.client.delete(*(images.keys.record(image_id) for image_id in gone))
    index, made, left = images.keys.index("acme"), set(), 24
    for _ in range(40):
        made.add(await images.create(tenant="acme"))
        members = {raw.decode() for raw in await images.client.zrange(index, 0, -1)}
        still = len(members & gone)
        assert left - 4 <= still <= left
        left = still
    assert left == 0
    # Existing images stay.
    for name in (index, images.keys.index()):
        assert {raw.decode() for raw in await images.client.zrange(name, 0, -1)} == made
    # Entries older than any record leave it at once.
    index = images.keys.index()
    await images.client.delete(index)
    await images.client.zadd(index, {f"old-{number}": 1 + number for number in range(50)})
    image_id = await images.create()
    assert await images.client.zrange(index, 0, -1) == [image_id.encode()]


# -- The upload guard: one upload at a time, and a stalled one does not block for ever ------------


async def test_the_first_upload_gets_the_guard(images: ImageHarness) -> None:
    image_id = await images.create()
    await images.shorten(image_id)
    upload_id = await images.claim(image_id)
    assert await images.guard(image_id) == b"claimed"
    record = await images.record(image_id)
    assert (record["status"], record["upload_id"]) == ("queued", upload_id)
    seconds, micros = await images.client.time()
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    assert now_ms < int(record["upload_deadline_ms"]) <= now_ms + HOLD_MS
    assert await images.stage(image_id) == ("queued", "0")
    assert await images.ttls(image_id) == (STATUS_TTL_S,) * 3
    async with images.unchanged():
        refused = await images.store.claim(image_id, fresh_upload(), HOLD_MS)
        assert (refused.answer, refused.facts) == (CONFLICT, {"status": "queued"})
        assert (await images.store.claim("nobody", fresh_upload(), HOLD_MS)).answer is MISSING


@pytest.mark.real_redis
async def test_the_guard_is_a_single_set_nx(images: ImageHarness) -> None:
    image_id = await images.create()
    async with images.client.monitor() as monitor:
        await images.claim(image_id)
        seen = monitor.listen()
        async with asyncio.timeout(5):
            while not (command := (await anext(seen))["command"]).startswith("SET "):
                pass
    assert command == f"SET {images.keys.upload(image_id)} claimed NX EX 3600"


async def test_a_third_party_guard_is_respected_until_it_expires(images: ImageHarness) -> None:
    """A third-party gateway does not write the record."""
    image_id = await images.create()
    guard = images.keys.upload(image_id)
    await images.client.set(guard, "claimed", ex=100)
    assert (await images.store.claim(image_id, fresh_upload(), HOLD_MS)).answer is CONFLICT
    assert (await images.store.reopen(image_id)).answer is CONFLICT
    assert await images.client.ttl(guard) <= 100
    await images.client.delete(guard)
    await images.claim(image_id)


async def test_the_guard_of_an_upload_in_progress_is_extended(images: ImageHarness) -> None:
    image_id = await images.create()
    upload_id = await images.claim(image_id, hold_ms=1)
    await images.shorten(image_id)
    assert (await images.store.extend_claim(image_id, upload_id, HOLD_MS)).answer is OK
    assert (await images.store.claim(image_id, fresh_upload(), HOLD_MS)).answer is CONFLICT
    assert await images.ttls(image_id) == (STATUS_TTL_S,) * 3
    await images.client.delete(images.keys.upload(image_id))  # a lost guard is restored
    assert (await images.store.extend_claim(image_id, upload_id, HOLD_MS)).answer is OK
    assert await images.guard(image_id) == b"claimed"
    assert (await images.ttls(image_id))[2] == STATUS_TTL_S
    # A claim restores an expired status.
    held = await images.failed()
    assert (await images.store.reopen(held.image_id)).answer is OK
    await images.client.delete(images.keys.status(held.image_id))
    await images.claim(held.image_id)
    assert await images.stage(held.image_id) == ("queued", "0")


async def test_a_failed_upload_releases_the_guard(doubting_images: ImageHarness) -> None:
    """Every call is repeated after a lost reply."""
    image_id = await doubting_images.create()
    upload_id = await doubting_images.claim(image_id)
    await doubting_images.shorten(image_id)
    assert (await doubting_images.store.release(image_id, upload_id)).answer is OK
    assert await doubting_images.guard(image_id) is None
    record = await doubting_images.record(image_id)
    assert record["status"] == "queued"
    assert not {"upload_id", "upload_deadline_ms"} & set(record)
    assert await doubting_images.stage(image_id) == ("queued", "0")
    assert await doubting_images.ttls(image_id) == (STATUS_TTL_S, STATUS_TTL_S, -2)
    await doubting_images.claim(image_id)


# -- REOPEN and DELETE, in every state of the image ------------------------------------------------


OF_AN_END = {"error_code", "error_message", "failed_at", "outcome", "details", "result_entry_id"}
OF_AN_UPLOAD = {"upload_id", "upload_deadline_ms", "job_id", "source_bytes", "source_sha256"}


async def test_a_failed_image_may_be_uploaded_again(images: ImageHarness) -> None:
    held = await images.processing(filename="a.jpg")
    await images.store.advance(held, Stage.UPLOADING)
    await images.fail(held)
    job_id = (await images.record(held.image_id))["job_id"]
    await images.shorten(held.image_id)
    outcome = await images.store.reopen(held.image_id)
    assert outcome == (OK, {"upload_id": held.upload_id, "job_id": job_id})
    record = await images.record(held.image_id)
    assert (record["status"], record["filename"]) == ("queued", "a.jpg")
    assert not (OF_AN_END | OF_AN_UPLOAD | {"uploaded_type"}) & set(record)
    [(entry_id, _)] = await images.entries()
    assert record["results_after"] == entry_id
    shown = await images.status(held.image_id)
    assert set(shown) == {"stage", "progress", "updated_at"}
    assert (shown["stage"], shown["progress"]) == ("queued", "0")
    assert await images.guard(held.image_id) is None
    # There was an upload, so it is kept as long as before.
    assert await images.ttls(held.image_id) == (RECORD_TTL_S, STATUS_TTL_S, -2)
    second = await images.submit(held.image_id, await images.claim(held.image_id))
    assert await images.ttls(held.image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)
    assert (await images.store.advance(second, Stage.VALIDATING)).answer is OK
    assert await images.stage(held.image_id) == ("validating", "10")
    await images.succeed(second)
    assert await images.stage(held.image_id) == ("done", "100")
    assert len(await images.entries()) == 2


async def test_a_stalled_upload_can_be_abandoned(images: ImageHarness) -> None:
    image_id = await images.create()
    upload_id = await images.claim(image_id)
    async with images.unchanged():
        refused = await images.store.reopen(image_id)
        assert (refused.answer, refused.facts) == (CONFLICT, {"status": "queued"})
    await images.over(image_id)
    assert await images.store.reopen(image_id) == (OK, {"upload_id": upload_id})
    async with images.unchanged():  # repeated after a lost reply
        assert (await images.store.reopen(image_id)).answer is OK
    assert await images.guard(image_id) is None
    # There was never an upload, so it is not kept longer.
    assert await images.ttls(image_id) == (STATUS_TTL_S, STATUS_TTL_S, -2)
    await images.claim(image_id)
    assert (await images.ttls(image_id))[0] == STATUS_TTL_S


async def test_the_position_in_the_results_survives_their_deletion(images: ImageHarness) -> None:
    held = await images.failed()
    [(entry_id, _)] = await images.entries()
    await images.client.delete(images.keys.results)
    await images.store.reopen(held.image_id)
    assert (await images.record(held.image_id))["results_after"] == entry_id


async def test_a_deletion_returns_what_is_left_to_clean_up(images: ImageHarness) -> None:
    held = await images.processing(tenant="acme")
    job_id = (await images.record(held.image_id))["job_id"]
    other = await images.create(tenant="acme")
    outcome = await images.store.delete(held.image_id)
    assert outcome == (
        OK,
        {
            "status": "processing",
            "job_id": job_id,
            "upload_id": held.upload_id,
            "storage_key": f"images/{held.image_id}.webp",
        },
    )
    assert await images.ttls(held.image_id) == (-2, -2, -2)
    assert await images.under_way() == []
    for index in (images.keys.index(), images.keys.index("acme")):
        assert await images.client.zrange(index, 0, -1) == [other.encode()]
    assert await images.without_ttl() == []
    assert 0 < await images.client.ttl(images.keys.deleted(held.image_id)) <= 60
    # Of concurrent deletions one gets the facts.
    image_id = await images.create()
    outcomes = await asyncio.gather(*(images.store.delete(image_id) for _ in range(20)))
    assert [outcome.answer for outcome in outcomes].count(OK) == 1


async def test_a_stored_image_is_deleted_by_its_own_key(images: ImageHarness) -> None:
    held = await images.processing()
    fields = failure_fields(held.image_id)
    entry_id = await images.third_party_entry(fields)
    await images.store.persist(entry_id, fields, GROUP)
    outcome = await images.store.delete(held.image_id)
    assert outcome.facts["storage_key"] == f"images/{held.image_id}.webp"
    stored = await images.processing()
    await images.succeed(stored)
    await images.client.hset(images.keys.record(stored.image_id), "storage_key", "elsewhere/x")
    assert (await images.store.delete(stored.image_id)).facts["storage_key"] == "elsewhere/x"
    image_id = await images.create()
    facts = {"status": "queued", "storage_key": f"images/{image_id}.webp"}
    assert await images.store.delete(image_id) == (OK, facts)
    async with images.unchanged():
        assert (await images.store.delete(image_id)).answer is MISSING
        assert (await images.store.delete("nobody")).answer is MISSING


async def test_in_flight_images_are_listed_with_their_jobs(images: ImageHarness) -> None:
    held = [await images.processing() for _ in range(3)]
    found = await images.store.inflight(10)
    assert {(each.image_id, each.upload_id) for each in found} == {each[:2] for each in held}
    for each in found:
        assert each.job_id == (await images.record(each.image_id))["job_id"]
    done, gone, there = held
    await images.succeed(done)
    await images.client.delete(images.keys.record(gone.image_id))
    assert [each.image_id for each in await images.store.inflight(10)] == [there.image_id]
    assert await images.under_way() == [there.image_id]
    # A scan in pages reaches every image.
    await images.store.delete(there.image_id)
    held = {(await images.processing()).image_id for _ in range(7)}
    seen: list[str] = []
    for _ in range(4):
        seen += [each.image_id for each in await images.store.inflight(2)]
    assert (len(seen), set(seen)) == (7, held)
    assert len(await images.store.inflight(100)) == 7

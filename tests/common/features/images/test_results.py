"""Results of third-party pipelines, which are written once; and reads by ImageReader."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.common import codec
from sluice.common.contracts.images import DEAD_RESULTS_KEPT, Detect, ImageStatus, Stage
from sluice.common.features.images.reader import BATCH_SIZE
from sluice.common.features.images.records import MOST_CHARS, find_entry_error
from tests.support.store.images import (
    ALREADY,
    GROUP,
    LOST,
    MISSING,
    OK,
    RECORD_TTL_S,
    STATUS_TTL_S,
    ImageHarness,
    failure_fields,
    processed,
    result_fields,
    texts,
)


async def persist_entry(images: ImageHarness, fields: dict[str, str]) -> str:
    """Add a third-party entry and persist it; returns its id."""
    entry_id = await images.third_party_entry(fields)
    assert (await images.store.persist(entry_id, fields, GROUP)).answer is OK
    return entry_id


@pytest.mark.parametrize("status", ["processed", "failed"])
async def test_a_result_becomes_the_record(images: ImageHarness, status: str) -> None:
    image_id = await images.create()
    await images.shorten(image_id)
    fields = result_fields(image_id) if status == "processed" else failure_fields(image_id)
    entry_id = await persist_entry(images, fields)
    record = await images.record(image_id)
    assert {name: record[name] for name in fields} == fields
    assert (record["status"], record["result_entry_id"]) == (status, entry_id)
    assert codec.loads(record["outcome"].encode()) == fields
    shown = await images.status(image_id)
    assert shown["stage"] == ("done" if status == "processed" else "failed")
    assert shown.get("error") == fields.get("error_message")
    assert await images.pending() == 0
    assert len(await images.entries()) == 1  # the result is not published twice
    assert await images.ttls(image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)


async def test_results_of_sluice_are_already_in_the_record(images: ImageHarness) -> None:
    for end in (images.succeed, images.fail):
        held = await images.processing()
        await end(held)
        (entry_id, fields) = (await images.entries())[-1]
        async with images.unchanged():
            assert (await images.store.persist(entry_id, fields, GROUP)).answer is ALREADY


async def test_a_redelivery_changes_nothing_and_is_acknowledged(images: ImageHarness) -> None:
    image_id = await images.create()
    fields = result_fields(image_id)
    entry_id = await persist_entry(images, fields)
    async with images.unchanged():
        # Delivered again, as after a crash between the write and a separate acknowledgement.
        await images.client.xgroup_setid(images.keys.results, GROUP, "0")
        await images.client.xreadgroup(GROUP, "api-2", {images.keys.results: ">"})
        assert await images.pending() == 1
        assert (await images.store.persist(entry_id, fields, GROUP)).answer is ALREADY
        assert await images.pending() == 0
    # So does another entry with equal content.
    held = await images.processing()
    await images.succeed(held, "same")
    record = await images.record(held.image_id)
    fields = result_fields(held.image_id, "same")
    entry_id = await images.third_party_entry(fields)
    assert (await images.store.persist(entry_id, fields, GROUP)).answer is ALREADY
    assert await images.record(held.image_id) == record
    assert (await images.client.xpending(images.keys.results, GROUP))["pending"] == 1  # Sluice's


async def test_a_later_result_replaces_an_earlier_one(images: ImageHarness) -> None:
    image_id = await images.create()
    first, second = failure_fields(image_id), result_fields(image_id)
    earlier, later = await images.third_party_entry(first), await images.third_party_entry(second)
    assert (await images.store.persist(later, second, GROUP)).answer is OK
    async with images.unchanged():
        assert (await images.store.persist(earlier, first, GROUP)).answer is ALREADY
    assert await images.pending() == 0
    third = await persist_entry(images, first)
    record = await images.record(image_id)
    assert (record["status"], record["result_entry_id"]) == ("failed", third)
    assert not {"sha256", "etag", "storage_key", "processed_at"} & set(record)


async def test_a_result_without_an_image_is_acknowledged(images: ImageHarness) -> None:
    for fields in (result_fields("nobody"), failure_fields("nobody")):
        entry_id = await images.third_party_entry(fields)
        async with images.unchanged():
            assert (await images.store.persist(entry_id, fields, GROUP)).answer is MISSING
    assert await images.pending() == 0


async def test_a_result_of_an_earlier_upload_is_not_used(images: ImageHarness) -> None:
    """Whether the next upload has not begun, is in progress, waits for its job or has ended."""
    image_id = await images.create()
    fields = failure_fields(image_id)
    failed = await persist_entry(images, fields)
    late = await images.third_party_entry(result_fields(image_id))  # that pipeline continued
    await images.store.reopen(image_id)
    for step in ("open", "claimed", "processing", "ended"):
        if step == "claimed":
            upload_id = await images.claim(image_id)
        elif step == "processing":
            held = await images.submit(image_id, upload_id)
        elif step == "ended":
            await images.succeed(held, "of the second upload")
        async with images.unchanged():
            for entry_id, entry in ((late, result_fields(image_id)), (failed, fields)):
                assert (await images.store.persist(entry_id, entry, GROUP)).answer is ALREADY


async def test_a_reopened_image_takes_results_of_its_upload_only(images: ImageHarness) -> None:
    held = await images.failed()
    await images.store.reopen(held.image_id)
    fields = result_fields(held.image_id)
    entry_id = await images.third_party_entry(fields)
    async with images.unchanged():  # nothing was uploaded yet, so there can be no result
        assert (await images.store.persist(entry_id, fields, GROUP)).answer is ALREADY
    await images.client.set(images.keys.upload(held.image_id), "claimed", ex=3600)
    await persist_entry(images, fields)  # of a third-party upload
    assert (await images.record(held.image_id))["status"] == "processed"


async def test_a_third_party_result_can_end_a_running_job(images: ImageHarness) -> None:
    held = await images.processing()
    fields = result_fields(held.image_id)
    await persist_entry(images, fields)
    assert await images.under_way() == []
    assert await images.succeed(held) == (ALREADY, {"outcome": fields})
    assert (await images.store.advance(held, Stage.DECODING)).answer is ALREADY
    image_id = await images.create()  # or an upload in progress
    upload_id = await images.claim(image_id)
    await persist_entry(images, result_fields(image_id))
    assert (await images.store.extend_claim(image_id, upload_id, 1000)).answer is LOST
    assert (await images.store.release(image_id, upload_id)).answer is LOST


async def test_without_a_group_there_is_nothing_to_acknowledge(images: ImageHarness) -> None:
    image_id = await images.create()
    fields = result_fields(image_id)
    async with images.refuses(ValueError, match="fields"):
        await images.store.persist("1-1", {**failure_fields(image_id), "more": "x"}, GROUP)
    entry_id = (await images.client.xadd(images.keys.results, fields)).decode()
    assert (await images.store.persist(entry_id, fields, GROUP)).answer is OK


async def letters(images: ImageHarness) -> list[dict[str, str]]:
    return [texts(fields) for _, fields in await images.client.xrange(images.keys.dead_results)]


async def test_an_invalid_entry_is_dead_lettered_once(images: ImageHarness) -> None:
    fields = {"image_id": "abc", "status": "odd"}
    entry_id = await images.third_party_entry(fields)
    async with images.unchanged():  # not pending
        await images.store.dead_letter_result("1-1", fields, "odd", 1, GROUP)
        await images.store.dead_letter_result("1-1", fields, "odd", 1, "no-such-group")
    call = images.store.dead_letter_result
    await asyncio.gather(*(call(entry_id, fields, "invalid status", 10, GROUP) for _ in range(20)))
    [letter] = await letters(images)
    assert letter.pop("dlq_at").endswith("Z")
    assert letter == {**fields, "dlq_reason": "invalid status", "dlq_delivery_count": "10"}
    assert await images.pending() == 0


@pytest.mark.real_redis
async def test_dead_letters_are_trimmed(images: ImageHarness) -> None:
    pipe = images.client.pipeline(transaction=False)
    for _ in range(3 * DEAD_RESULTS_KEPT):
        pipe.xadd(images.keys.dead_results, {"x": "y" * 50})
    await pipe.execute()
    entry_id = await images.third_party_entry({"x": "y"})
    await images.store.dead_letter_result(entry_id, {"x": "y"}, "odd", 1, GROUP)
    kept: Any = await images.client.xlen(images.keys.dead_results)
    assert DEAD_RESULTS_KEPT <= kept < 2 * DEAD_RESULTS_KEPT


# -- ImageReader: progress, records and lists; and validation of results --------------------------


async def test_progress_is_read_from_the_status(images: ImageHarness) -> None:
    queued, failed, working = (
        await images.create(), await images.failed(), await images.processing()
    )  # fmt: skip
    await images.store.advance(working, Stage.ENCODING)
    status = images.keys.status
    await images.client.hset(status("new"), mapping={"stage": "watermarking", "progress": "60"})
    await images.client.set(status("string"), "odd", ex=60)
    await images.client.hset(status("other"), "odd", "z")
    ids = [queued, "nobody", failed.image_id, working.image_id, "new", "string", "other"]
    first, none, second, third, unknown, *invalid = await images.reader.progress(ids)
    assert [none, *invalid] == [None, None, None]
    assert (first.stage, first.progress, first.error) == (Stage.QUEUED, "0", "")
    assert (second.stage, second.progress, second.error) == (Stage.FAILED, "-1", "file too large")
    assert (third.stage, third.progress) == (Stage.ENCODING, "75")
    assert third.updated_at == (await images.status(working.image_id))["updated_at"]
    assert unknown == (Stage.PROCESSING, "60", "", "")  # a stage of a later version
    assert await images.reader.progress([]) == []


async def test_a_record_is_read_as_created(images: ImageHarness) -> None:
    image_id = await images.create(
        filename="ünï.jpg",
        declared_type="image/jpeg",
        max_bytes=9,
        metadata=b'{"a":1}',
        detect=Detect.NONE,
        tenant="acme",
        tail="7",
    )
    record = await images.reader.record(image_id)
    assert record is not None
    assert (record.image_id, record.status) == (image_id, ImageStatus.QUEUED)
    assert (record.filename, record.declared_type, record.max_bytes) == ("ünï.jpg", "image/jpeg", 9)
    assert (record.metadata, record.detect) == (b'{"a":1}', Detect.NONE)
    assert (record.tenant, record.tail) == ("acme", "7")
    assert record.created_at == record.updated_at != ""
    assert (record.ended, record.result, record.failure) == (False, None, None)
    assert (record.upload_id, record.job_id, record.details) == ("", "", b"{}")


async def test_a_record_has_its_outcome(images: ImageHarness) -> None:
    done, failed = await images.processing(), await images.failed()
    await images.succeed(done)
    first, none, second = await images.reader.records([done.image_id, "nobody", failed.image_id])
    assert none is None
    assert (first.ended, first.failure) == (True, None)
    assert (second.ended, second.result) == (True, None)
    made = processed(done.image_id)
    assert (first.result.sha256, first.result.file_size) == (made.sha256, 245_760)
    assert (first.result.original_width, first.result.processed_height) == (4032, 1440)
    assert first.detail() == {"dominant_color": "#aabbcc"}
    assert (first.source_bytes, first.uploaded_type) == (1234, "image/jpeg")
    assert first.upload_id == done.upload_id
    failure = second.failure
    assert (failure.error_code, failure.error_message) == ("VALIDATION_FAILED", "file too large")


async def test_invalid_records_become_neutral_or_none(images: ImageHarness) -> None:
    await images.client.set(images.keys.record("a"), "odd", ex=60)
    await images.client.hset(images.keys.record("b"), "status", "odd")
    odd = {"status": "processed", "file_size": "-5", "metadata": "[1]", "details": "{"}
    await images.client.hset(images.keys.record("c"), mapping={**odd, "ttl_s": "x"})
    none, also_none, found = await images.reader.records(["a", "b", "c"])
    assert (none, also_none) == (None, None)
    assert (found.result.file_size, found.ttl_s) == (0, 0)
    assert (found.metadata, found.details, found.detail()) == (b"{}", b"{}", {})


async def pages(images: ImageHarness, tenant: str, limit: int) -> list[list[str]]:
    found, before = [], ""
    while True:
        page = await images.reader.list(tenant, before, limit)
        found.append([record.image_id for record in page.records])
        if not page.next:
            return found
        before = page.next


async def test_a_list_has_the_newest_first_in_pages(images: ImageHarness) -> None:
    made = []
    for number in range(7):
        # Images of the same time are listed by id.
        made.append((1000 + number // 3, await images.create(tenant="acme")))
    await images.create(tenant="other")
    await images.client.zadd(images.keys.index("acme"), {image_id: ms for ms, image_id in made})
    expected = [image_id for _, image_id in sorted(made, reverse=True)]
    for limit in (1, 2, 3, 7, 50):
        found = await pages(images, "acme", limit)
        assert [image_id for page in found for image_id in page] == expected
        assert all(len(page) == limit for page in found[:-1])
    page = await images.reader.list("acme", "", 2)
    assert page.total == 7
    assert len((await images.reader.list("", "", 50)).records) == 8
    assert await pages(images, "nobody", 5) == [[]]
    # New images do not shift pages.
    made = [await images.create(tenant="new") for _ in range(4)]
    first = await images.reader.list("new", "", 2)
    await images.create(tenant="new")
    second = await images.reader.list("new", first.next, 2)
    seen = [record.image_id for record in (*first.records, *second.records)]
    assert set(seen) == set(made)


async def test_expired_images_are_not_listed(images: ImageHarness) -> None:
    many = {f"gone-{number}": 5000 + number for number in range(3 * BATCH_SIZE)}
    image_id = await images.create()
    await images.client.zadd(images.keys.index(), {**many, image_id: 1})
    page = await images.reader.list("", "", 10)
    assert [record.image_id for record in page.records] == [image_id]
    assert page.next == ""


@pytest.mark.fakeredis_only
async def test_an_invalid_cursor_is_rejected(images: ImageHarness) -> None:
    for before in ("x", "1", "-", "1-", "1-a b", "99999999999999999-a", "1-\n"):
        with pytest.raises(ValueError, match="invalid cursor"):
            await images.reader.list("", before, 2)


def test_a_result_as_specified_is_valid() -> None:
    assert find_entry_error(result_fields("abc-123")) == ""
    assert find_entry_error(failure_fields("abc-123")) == ""
    for missing in result_fields("abc"):
        fields = result_fields("abc")
        del fields[missing]
        assert find_entry_error(fields), missing


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "odd"}, "status"),
        ({"status": "failed"}, "fields"),
        ({"more": "x"}, "fields"),
        ({"image_id": ""}, "image id"),
        ({"image_id": "a b"}, "image id"),
        ({"image_id": "a" * 129}, "image id"),
        ({"etag": "x" * (MOST_CHARS + 1)}, "too long"),
        ({"file_size": "-1"}, "file_size"),
        ({"file_size": ""}, "file_size"),
        ({"original_width": "1e3"}, "original_width"),
        ({"processed_height": "12 "}, "processed_height"),
        ({"sha256": "AB" * 32}, "sha256"),
        ({"sha256": "ab" * 31}, "sha256"),
        ({"storage_key": ""}, "storage_key"),
        ({"storage_key": "/etc/passwd"}, "storage_key"),
        ({"storage_key": "images/../../x"}, "storage_key"),
        ({"storage_key": "images//x"}, "storage_key"),
        ({"storage_key": "images/x\n"}, "storage_key"),
        # Keys that no storage accepts.
        ({"storage_key": "images/" + "x" * 600}, "storage_key"),
    ],
)
def test_other_entries_are_invalid(changes: dict[str, str], reason: str) -> None:
    assert reason in find_entry_error({**result_fields("abc"), **changes})

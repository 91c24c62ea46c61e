"""ImageReader: progress, records and lists; and validation of results."""

from __future__ import annotations

import pytest

from common.contracts.images import Detect, ImageStatus, Stage
from common.features.images.reader import BATCH_SIZE
from common.features.images.records import MOST_CHARS, find_entry_error
from tests.support.store.images import ImageHarness, failure_fields, processed, result_fields


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

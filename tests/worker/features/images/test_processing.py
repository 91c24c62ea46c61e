"""An image from the spool to the store, in a real process, on every Redis."""

from __future__ import annotations

import hashlib
import io
import json

from PIL import Image, ImageChops, ImageStat

from common.contracts.images import Detect
from tests.support import photos
from tests.worker.features.images.detect.kit import astronaut
from tests.worker.features.images.kit import RESULT_FIELDS, STAGES, ImageMaker, photo
from worker.features.images.pixels.formats import FORMATS


async def test_record_status_and_result_of_a_processed_image_agree(imagers: ImageMaker) -> None:
    rig = await imagers()
    record = await rig.process(photo("jpeg"))
    image_id = record.image_id
    stored = rig.stored(image_id)
    assert stored is not None
    result = record.result
    assert result is not None
    assert result.storage_key == f"images/{image_id}.webp"
    assert result.sha256 == hashlib.sha256(stored).hexdigest()
    assert result.etag == hashlib.md5(stored).hexdigest()
    assert (result.file_size, result.content_type) == (len(stored), "image/webp")
    with Image.open(io.BytesIO(stored)) as image:
        assert (image.format, image.size) == (
            "WEBP",
            (result.processed_width, result.processed_height),
        )
    [entry] = await rig.entries(image_id)
    assert list(entry) == RESULT_FIELDS
    assert entry["status"] == "processed"
    assert entry["sha256"] == result.sha256
    shown = await rig.shown(image_id)
    assert (shown["stage"], shown["progress"]) == ("done", "100")
    assert "error" not in shown
    core = await rig.core_result(record.job_id)
    details = core.pop("details")
    assert core == entry
    assert details == record.detail()
    assert (details["source_format"], details["detector"]) == ("jpeg", "none")
    assert list(details["timings_ms"]) == STAGES
    assert await rig.stage_events(record.job_id) == [(stage, 1) for stage in STAGES]
    assert rig.spooled() == []
    assert await rig.client.zcard(rig.images.keys.inflight) == 0
    assert rig.telling["images"]().processed == 1


async def test_stages_are_seen_in_their_order(imagers: ImageMaker) -> None:
    rig = await imagers(opened=False)
    seen: list[tuple[str, str]] = []
    advance = rig.images.advance

    async def watched(processing, stage):  # type: ignore[no-untyped-def]
        outcome = await advance(processing, stage)
        shown = await rig.shown(processing.image_id)
        seen.append((shown["stage"], shown["progress"]))
        assert await rig.entries() == []
        return outcome

    rig.images.advance = watched  # type: ignore[method-assign]
    await rig.open()
    await rig.process(photo("png"), "image/png")
    # The last stage is checked again before the put, but not written again.
    assert [*dict.fromkeys(seen)] == list(zip(STAGES, ("10", "30", "55", "75", "90")))
    assert len(seen) == len(STAGES) + 1


async def test_concurrency_is_bounded_by_the_processes(imagers: ImageMaker) -> None:
    rig = await imagers(rig={"max_inflight": 16})
    ids = [await rig.upload(photo("jpeg", seed)) for seed in range(12)]
    for image_id in ids:
        record = await rig.image_ended(image_id)
        assert record.status.value == "processed"
    assert len(rig.service.pool.pids) <= 2
    assert len(await rig.entries()) == 12
    assert rig.spooled() == []


async def test_a_real_photograph_in_every_format(fake_imagers: ImageMaker) -> None:
    """The stored image is the photograph, in any source format."""
    rig = await fake_imagers(image_formats=",".join(FORMATS))
    for kind in FORMATS:
        source = photos.encoded(astronaut(), kind)
        record = await rig.process(source, photos.CONTENT_TYPES[kind])
        stored = rig.stored(record.image_id)
        assert record.result is not None, (kind, record.failure)
        assert record.detail()["source_format"] == kind
        assert record.result.sha256 == hashlib.sha256(stored).hexdigest()
        [entry] = await rig.entries(record.image_id)
        assert list(entry) == RESULT_FIELDS
        with Image.open(io.BytesIO(stored)) as image:
            assert image.size == astronaut().size
            unlike = ImageChops.difference(image.convert("RGB"), astronaut().convert("RGB"))
        assert max(ImageStat.Stat(unlike).mean) < (16 if kind == "gif" else 6), kind


async def test_faces_are_found_and_recorded(fake_imagers: ImageMaker) -> None:
    rig = await fake_imagers(image_detector="auto")
    await rig.service.self_test.outcome()
    made = io.BytesIO()
    astronaut().save(made, "JPEG", quality=95)
    record = await rig.process(made.getvalue())
    details = record.detail()
    installed = rig.service.self_test.choice.enabled
    assert details["detector"] == ("centerface" if installed else "none")
    assert len(details["detections"]) == int(installed)
    assert rig.telling["images"]().detector == details["detector"]
    unwanted = await rig.process(made.getvalue(), detect=Detect.NONE)
    assert unwanted.detail()["detector"] == "none"


async def test_a_second_upload_after_a_failure_counts(imagers: ImageMaker) -> None:
    rig = await imagers()
    image_id = await rig.upload(b"no image at all")
    await rig.failed(image_id, "VALIDATION_FAILED")
    await rig.images.reopen(image_id)
    await rig.upload(photo("jpeg"), image_id=image_id)
    record = await rig.image_ended(image_id)
    assert record.status.value == "processed"
    assert [entry["status"] for entry in await rig.entries(image_id)] == ["failed", "processed"]


async def test_a_message_that_comes_twice_makes_one_result(imagers: ImageMaker) -> None:
    rig = await imagers()
    record = await rig.process(photo("jpeg"))
    payload = json.dumps(
        {
            "tool": "image.process",
            "args": {"image_id": record.image_id, "upload_id": record.upload_id},
        }
    )
    [again] = await rig.post(payload=payload.encode(), task="tool")
    assert await rig.settled(again) == b"done"
    core = await rig.core_result(again)
    assert core["sha256"] == record.result.sha256
    assert len(await rig.entries(record.image_id)) == 1

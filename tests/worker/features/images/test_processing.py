"""An image from the spool to the store, in a real process, on every Redis."""

from __future__ import annotations

import hashlib
import io
import json

import pytest
from PIL import Image, ImageChops, ImageStat

from common.contracts.images import Detect
from tests.support.files import photos
from tests.support.files.detection import astronaut
from tests.support.worker.images import RESULT_FIELDS, STAGES, ImageMaker, photo
from worker.features.images.pixels.formats import FORMATS


async def test_record_status_and_result_of_a_processed_image_agree(imagers: ImageMaker) -> None:
    worker = await imagers()
    record = await worker.process(photo("jpeg"))
    image_id = record.image_id
    stored = worker.stored(image_id)
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
    [entry] = await worker.entries(image_id)
    assert list(entry) == RESULT_FIELDS
    assert entry["status"] == "processed"
    assert entry["sha256"] == result.sha256
    shown = await worker.shown(image_id)
    assert (shown["stage"], shown["progress"]) == ("done", "100")
    assert "error" not in shown
    core = await worker.core_result(record.job_id)
    details = core.pop("details")
    assert core == entry
    assert details == record.detail()
    assert (details["source_format"], details["detector"]) == ("jpeg", "none")
    assert list(details["timings_ms"]) == STAGES
    assert await worker.stage_events(record.job_id) == [(stage, 1) for stage in STAGES]
    assert worker.spooled() == []
    assert await worker.client.zcard(worker.images.keys.inflight) == 0
    assert worker.telling["images"]().processed == 1


@pytest.mark.fakeredis_only
async def test_a_real_photograph_in_every_format(imagers: ImageMaker) -> None:
    """The stored image is the photograph, in any source format."""
    worker = await imagers(image_formats=",".join(FORMATS))
    for kind in FORMATS:
        source = photos.encoded(astronaut(), kind)
        record = await worker.process(source, photos.CONTENT_TYPES[kind])
        stored = worker.stored(record.image_id)
        assert record.result is not None, (kind, record.failure)
        assert record.detail()["source_format"] == kind
        assert record.result.sha256 == hashlib.sha256(stored).hexdigest()
        [entry] = await worker.entries(record.image_id)
        assert list(entry) == RESULT_FIELDS
        with Image.open(io.BytesIO(stored)) as image:
            assert image.size == astronaut().size
            unlike = ImageChops.difference(image.convert("RGB"), astronaut().convert("RGB"))
        assert max(ImageStat.Stat(unlike).mean) < (16 if kind == "gif" else 6), kind


@pytest.mark.fakeredis_only
async def test_faces_are_found_and_recorded(imagers: ImageMaker) -> None:
    worker = await imagers(image_detector="auto")
    await worker.service.self_test.outcome()
    made = io.BytesIO()
    astronaut().save(made, "JPEG", quality=95)
    record = await worker.process(made.getvalue())
    details = record.detail()
    installed = worker.service.self_test.choice.enabled
    assert details["detector"] == ("centerface" if installed else "none")
    assert len(details["detections"]) == int(installed)
    assert worker.telling["images"]().detector == details["detector"]
    unwanted = await worker.process(made.getvalue(), detect=Detect.NONE)
    assert unwanted.detail()["detector"] == "none"


async def test_a_message_that_comes_twice_makes_one_result(imagers: ImageMaker) -> None:
    worker = await imagers()
    record = await worker.process(photo("jpeg"))
    payload = json.dumps(
        {
            "tool": "image.process",
            "args": {"image_id": record.image_id, "upload_id": record.upload_id},
        }
    )
    [again] = await worker.post(payload=payload.encode(), task="tool")
    assert await worker.settled(again) == b"done"
    core = await worker.core_result(again)
    assert core["sha256"] == record.result.sha256
    assert len(await worker.entries(record.image_id)) == 1

"""An image from the spool to the store, in a real process, on every Redis."""

from __future__ import annotations

import hashlib
import io
import json

import httpx
import pytest
from PIL import Image

from tests.support.store.images import RESULT_FIELDS
from tests.support.worker.images import STAGES, ImageMaker, ImageWorker


async def test_record_status_and_result_of_a_processed_image_agree(imager: ImageWorker) -> None:
    record = await imager.process()
    image_id = record.image_id
    stored = imager.stored(image_id)
    result = record.result
    assert result.storage_key == f"images/{image_id}.webp"
    assert result.sha256 == hashlib.sha256(stored).hexdigest()
    assert result.etag == hashlib.md5(stored).hexdigest()
    assert (result.file_size, result.content_type) == (len(stored), "image/webp")
    with Image.open(io.BytesIO(stored)) as image:
        assert image.format == "WEBP"
        assert image.size == (result.processed_width, result.processed_height)
    [entry] = await imager.entries(image_id)
    assert list(entry) == RESULT_FIELDS
    assert entry["status"] == "processed"
    assert entry["sha256"] == result.sha256
    shown = await imager.shown(image_id)
    assert (shown["stage"], shown["progress"]) == ("done", "100")
    assert "error" not in shown
    core = await imager.result(record.job_id)
    details = core.pop("details")
    assert core == entry
    assert details == record.detail()
    assert (details["source_format"], details["detector"]) == ("jpeg", "none")
    assert list(details["timings_ms"]) == STAGES
    assert await imager.stage_events(record.job_id) == [(stage, 1) for stage in STAGES]
    assert imager.spooled() == []
    assert await imager.client.zcard(imager.images.keys.inflight) == 0
    assert imager.telling["images"]().processed == 1


async def test_a_message_that_comes_twice_makes_one_result(imager: ImageWorker) -> None:
    record = await imager.process()
    args = {"image_id": record.image_id, "upload_id": record.upload_id}
    payload = json.dumps({"tool": "image.process", "args": args}).encode()
    again = await imager.run_job(task="tool", payload=payload)
    assert (await imager.result(again))["sha256"] == record.result.sha256
    assert len(await imager.entries(record.image_id)) == 1


@pytest.mark.fakeredis_only
@pytest.mark.xdist_group("s3")
async def test_record_and_bucket_agree(imagers: ImageMaker, s3_endpoint: str) -> None:
    key = {"aws_access_key_id": "who", "aws_secret_access_key": "secret"}
    # moto does not check signatures.
    login = {"authorization": "AWS4-HMAC-SHA256 Credential=who/20260101/us-east-1/s3/aws4_request"}
    async with httpx.AsyncClient(base_url=s3_endpoint, headers=login) as client:
        assert (await client.put("/images")).status_code == 200
        worker = await imagers(
            image_store="s3", image_s3_endpoint=s3_endpoint, image_s3_bucket="images", **key
        )
        record = await worker.process()
        stored = await client.get(f"/images/{record.result.storage_key}")
    assert stored.headers["etag"] == f'"{record.result.etag}"'
    assert stored.headers["content-type"] == "image/webp"
    assert hashlib.sha256(stored.content).hexdigest() == record.result.sha256
    assert len(stored.content) == record.result.file_size
    assert worker.stored(record.image_id) is None
    [entry] = await worker.entries()
    assert entry["etag"] == record.result.etag

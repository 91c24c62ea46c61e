"""Images in an S3 bucket."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.support.worker.images import ImageMaker, photo

pytestmark = pytest.mark.fakeredis_only


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """Settings of a bucket on loopback."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {
        "image_store": "s3",
        "image_s3_endpoint": f"http://{host}:{port}",
        "image_s3_bucket": f"b-{secrets.token_hex(6)}",
        "aws_access_key_id": "who",
        "aws_secret_access_key": "secret",
    }
    server.stop()


def client_of(s3: dict[str, Any]) -> Any:
    return boto3.session.Session().client(
        "s3",
        region_name="us-east-1",
        endpoint_url=s3["image_s3_endpoint"],
        aws_access_key_id="who",
        aws_secret_access_key="secret",
    )


async def test_record_and_bucket_agree(imagers: ImageMaker, s3: dict[str, Any]) -> None:
    client = client_of(s3)
    client.create_bucket(Bucket=s3["image_s3_bucket"])
    worker = await imagers(**s3)
    record = await worker.process(photo())
    stored = client.get_object(Bucket=s3["image_s3_bucket"], Key=record.result.storage_key)
    data = stored["Body"].read()
    assert stored["ETag"] == f'"{record.result.etag}"'
    assert stored["ContentType"] == "image/webp"
    assert hashlib.sha256(data).hexdigest() == record.result.sha256
    assert len(data) == record.result.file_size
    assert worker.stored(record.image_id) is None
    [entry] = await worker.entries()
    assert entry["etag"] == record.result.etag

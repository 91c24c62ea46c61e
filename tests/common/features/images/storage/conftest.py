"""Empty stores of every kind: the same tests run on each."""

from __future__ import annotations

import functools
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from common.features.images.storage.base import Storage
from common.features.images.storage.directory import DirectoryStorage
from common.features.images.storage.s3 import Bucket, S3Storage

KEY, SECRET = "who", "secret"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """URL of an S3 server on loopback."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str) -> Bucket:
    """An empty bucket on that server."""
    made = Bucket(f"b-{secrets.token_hex(6)}", "us-east-1", s3_server, KEY, SECRET)
    client_of(made).create_bucket(Bucket=made.name)
    return made


def client_of(bucket: Bucket) -> Any:
    """A plain boto3 client, to inspect the bucket directly."""
    return _client(bucket.region, str(bucket.endpoint))


@functools.cache
def _client(region: str, endpoint: str) -> Any:
    """One for all tests: boto3 takes a second to make a client."""
    return boto3.session.Session().client(
        "s3",
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )


@pytest.fixture(params=["dir", "s3"])
async def storage(request: Any, tmp_path: Path) -> AsyncIterator[Storage]:
    made: Storage
    if request.param == "dir":
        made = DirectoryStorage(tmp_path / "store")
    else:
        made = S3Storage(request.getfixturevalue("bucket"))
    yield made
    await made.close()

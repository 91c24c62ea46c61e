"""S3 storage, against moto on loopback."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.errors import SettingsError
from common.features.images.storage.base import StorageError
from common.features.images.storage.directory import DirectoryStorage
from common.features.images.storage.factory import create_spool, create_storage
from common.features.images.storage.s3 import Bucket, S3Storage
from common.settings.base import load_settings
from common.settings.worker import WorkerSettings
from tests.common.features.images.storage.conftest import client_of
from tests.common.features.images.storage.test_dir_storage import Naps

KEY = "images/abc-123.webp"


async def test_an_object_has_the_etag_and_can_be_fetched_by_its_url(bucket: Bucket) -> None:
    storage = S3Storage(bucket)
    stored = await storage.put(KEY, b"pixels", "image/webp")
    head = client_of(bucket).head_object(Bucket=bucket.name, Key=KEY)
    assert head["ETag"] == f'"{stored.etag}"'
    assert stored.etag == hashlib.md5(b"pixels").hexdigest()
    assert (head["ContentType"], head["ContentLength"]) == ("image/webp", 6)
    url = await storage.url(KEY, 60)
    assert url is not None
    assert "X-Amz-Signature" in url
    assert "X-Amz-Expires=60" in url
    async with httpx.AsyncClient() as client:
        answer = await client.get(url)
    assert (answer.status_code, answer.content) == (200, b"pixels")
    assert answer.headers["content-type"] == "image/webp"
    await storage.close()


async def test_an_unavailable_server_is_tried_four_times(bucket: Bucket) -> None:
    naps = Naps()
    away = dataclasses.replace(bucket, endpoint="http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"cannot be reached.*IMAGE_S3_ENDPOINT"):
        await S3Storage(away, naps).put(KEY, b"x", "image/webp")
    assert naps.taken == [1.0, 2.0, 4.0]


async def test_a_retry_succeeds_when_the_server_is_back(bucket: Bucket) -> None:
    storage = S3Storage(dataclasses.replace(bucket, endpoint="http://127.0.0.1:9"))

    async def nap(seconds: float) -> None:
        storage._bucket, storage._made = bucket, None

    storage._sleep = nap
    assert (await storage.put(KEY, b"x", "image/webp")).size_bytes == 1
    assert await storage.read(KEY)
    await storage.close()


async def test_a_missing_bucket_is_reported_at_once(bucket: Bucket) -> None:
    naps = Naps()
    storage = S3Storage(dataclasses.replace(bucket, name="nobodys-bucket"), naps)
    with pytest.raises(StorageError, match=r"nobodys-bucket.*NoSuchBucket.*IMAGE_S3_BUCKET"):
        await storage.put(KEY, b"x", "image/webp")
    with pytest.raises(StorageError, match="IMAGE_S3_BUCKET"):
        await storage.check()
    assert naps.taken == []
    await storage.close()


async def test_missing_credentials_are_named(
    s3_server: str, monkeypatch: Any, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(StorageError, match="AWS_ACCESS_KEY_ID"):
        await S3Storage(Bucket("b", endpoint=s3_server)).check()


async def test_errors_contain_no_secret(bucket: Bucket) -> None:
    hidden = dataclasses.replace(bucket, secret="s3cr3t-value", name="nobodys")
    with pytest.raises(StorageError) as raised:
        await S3Storage(hidden).check()
    assert "s3cr3t-value" not in str(raised.value)


def test_the_check_leaves_no_object(bucket: Bucket) -> None:
    import asyncio

    asyncio.run(S3Storage(bucket).check())
    assert "Contents" not in client_of(bucket).list_objects_v2(Bucket=bucket.name)


def test_settings_select_the_storage(monkeypatch: Any, tmp_path: Path) -> None:
    chosen = create_storage(load_settings(WorkerSettings, sluice_data_dir=str(tmp_path)))
    assert isinstance(chosen, DirectoryStorage)
    assert chosen.directory == tmp_path / "images" / "store"
    elsewhere = load_settings(WorkerSettings, image_store_dir="/srv/x", image_spool_dir="/srv/y")
    assert create_storage(elsewhere).directory == Path("/srv/x")  # type: ignore[attr-defined]
    assert create_spool(elsewhere).directory == Path("/srv/y")
    keys = {"aws_access_key_id": "who", "aws_secret_access_key": "secret"}
    s3 = load_settings(WorkerSettings, image_store="s3", image_s3_bucket="b", **keys)
    assert create_storage(s3).name == "s3"
    with pytest.raises(SettingsError, match="IMAGE_S3_BUCKET"):
        load_settings(WorkerSettings, image_store="s3")
    half = load_settings(
        WorkerSettings, image_store="s3", image_s3_bucket="b", aws_access_key_id="who"
    )
    with pytest.raises(SettingsError, match="AWS_SECRET_ACCESS_KEY"):
        create_storage(half)


async def test_without_boto3_errors_name_the_extra(monkeypatch: Any, bucket: Bucket) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(SettingsError, match=r"sluice\[s3\]"):
        await S3Storage(bucket).check()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"sluice\[s3\]"):
        create_storage(load_settings(WorkerSettings, image_store="s3", image_s3_bucket="b"))

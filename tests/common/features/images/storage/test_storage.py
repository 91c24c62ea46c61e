"""Storage in a directory and in S3 (moto on loopback)."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import functools
import hashlib
import os
import secrets
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

from sluice.common.errors import SettingsError
from sluice.common.features.images.storage.base import Storage, StorageError
from sluice.common.features.images.storage.directory import DirectoryStorage
from sluice.common.features.images.storage.factory import create_spool, create_storage
from sluice.common.features.images.storage.s3 import Bucket, S3Storage
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings

#: One test process loads boto3, not all of them.
pytestmark = pytest.mark.xdist_group("s3")

KEY, TYPE = "images/abc-123.webp", "image/webp"
LOGIN = {"aws_access_key_id": "who", "aws_secret_access_key": "secret"}


#: Loads the description of S3 once, which takes a second and 10 MB.
SHARED_SESSION = functools.cache(boto3.session.Session)


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket."""
    monkeypatch.setattr(boto3.session, "Session", SHARED_SESSION)
    made = Bucket(f"b-{secrets.token_hex(6)}", "us-east-1", s3_endpoint, *LOGIN.values())
    client_of(made).create_bucket(Bucket=made.name)
    return made


def client_of(bucket: Bucket) -> Any:
    """A plain boto3 client, to inspect the bucket directly."""
    return SHARED_SESSION().client("s3", bucket.region, endpoint_url=bucket.endpoint, **LOGIN)


@pytest.fixture(params=["dir", "s3"])
async def storage(request: Any, tmp_path: Path) -> AsyncIterator[Storage]:
    made: Storage
    if request.param == "dir":
        made = DirectoryStorage(tmp_path / "store")
    else:
        made = S3Storage(request.getfixturevalue("bucket"))
    yield made
    await made.close()


# -- Behaviour that all kinds of storage share ----------------------------------------------------


async def content(storage: Storage, key: str = KEY) -> bytes | None:
    found = await storage.read(key)
    if found is None:
        return None
    data = b"".join([chunk async for chunk in found.chunks])
    assert len(data) == found.size_bytes
    return data


async def test_a_stored_object_can_be_read_replaced_and_deleted(storage: Storage) -> None:
    await storage.check()  # leaves no object
    assert await storage.read("images/check") is None
    assert await storage.read(KEY) is None
    await storage.delete(KEY)
    data = bytes(range(256)) * 4096  # more than one chunk
    stored = await storage.put(KEY, data, TYPE)
    assert stored == (hashlib.md5(data).hexdigest(), len(data))
    assert await content(storage) == data
    stored = await storage.put(KEY, b"second!", TYPE)
    assert stored == (hashlib.md5(b"second!").hexdigest(), 7)
    assert await content(storage) == b"second!"
    for _ in range(2):
        await storage.delete(KEY)
    assert await storage.read(KEY) is None


async def test_many_objects_at_once(storage: Storage) -> None:
    keys = [f"images/{number}.webp" for number in range(20)]
    await asyncio.gather(*(storage.put(key, key.encode(), TYPE) for key in keys))
    assert await asyncio.gather(*(content(storage, key) for key in keys)) == [
        key.encode() for key in keys
    ]


async def test_an_abandoned_reader_leaves_nothing_open(storage: Storage) -> None:
    await storage.put(KEY, bytes(2_000_000), TYPE)
    found = await storage.read(KEY)
    assert found is not None
    async for chunk in found.chunks:
        assert chunk
        break
    await found.chunks.aclose()  # type: ignore[attr-defined]
    assert [chunk async for chunk in found.chunks] == []


async def test_an_invalid_key_is_rejected(storage: Storage) -> None:
    invalid = ("", "/etc/passwd", "../x", "images/../../x", "images/.hidden", "images//x")
    invalid += ("images/x\0.webp", "images/", "./x", "x" * 513, "images/x y")
    for key in invalid:
        with pytest.raises(ValueError):
            await storage.put(key, b"x", TYPE)
        with pytest.raises(ValueError):
            await storage.read(key)
        with pytest.raises(ValueError):
            await storage.delete(key)


async def test_a_failed_check_prevents_replacement(storage: Storage) -> None:
    async def no() -> None:
        raise PermissionError("another one counts")

    with pytest.raises(PermissionError):
        await storage.put(KEY, b"never", TYPE, no)
    assert await storage.read(KEY) is None
    await storage.put(KEY, b"the one", TYPE)
    with pytest.raises(PermissionError):
        await storage.put(KEY, b"never", TYPE, no)
    assert await content(storage) == b"the one"
    if isinstance(storage, DirectoryStorage):
        assert [file.key for file in storage.files()] == [KEY]


@pytest.mark.parametrize("former", [b"", b"former"])
async def test_a_concurrent_change_is_checked_first(storage: Any, former: bytes) -> None:
    if former:
        await storage.put(KEY, former, TYPE)
    asked = []

    async def may() -> None:
        asked.append(await content(storage))
        if len(asked) == 1:
            await storage.put(KEY, b"meanwhile", TYPE)

    async def at_once(seconds: float) -> None:
        pass

    storage._sleep = at_once
    stored = await storage.put(KEY, b"at last", TYPE, may)
    assert asked == [former or None, b"meanwhile"]
    assert await content(storage) == b"at last"
    assert stored.size_bytes == 7


# -- A directory: atomic writes, and access for the group -----------------------------------------


class Naps:
    """Sleeps that take no time."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


@pytest.fixture
def narrow_umask() -> Any:
    """The umask of the systemd units."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("narrow_umask")
async def test_the_group_has_access_with_any_umask(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "a" / "store")
    await storage.put(KEY, b"x", TYPE)
    for directory in ("a", "a/store", "a/store/images"):
        assert stat.S_IMODE((tmp_path / directory).stat().st_mode) == 0o2770
    assert stat.S_IMODE((tmp_path / "a/store" / KEY).stat().st_mode) == 0o640
    # An existing directory keeps its mode.
    (tmp_path / "store").mkdir(0o700)
    await DirectoryStorage(tmp_path / "store").check()
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700


async def test_the_group_may_write_if_setgid_is_forbidden(tmp_path: Path, monkeypatch: Any) -> None:
    real = Path.chmod

    def as_restricted(path: Path, mode: int) -> None:
        if mode & stat.S_ISGID:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        real(path, mode)

    monkeypatch.setattr(Path, "chmod", as_restricted)
    await DirectoryStorage(tmp_path / "store").put(KEY, b"x", TYPE)
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) & 0o777 == 0o770


async def test_a_failed_write_is_retried_and_keeps_the_old(
    tmp_path: Path, monkeypatch: Any
) -> None:
    naps = Naps()
    storage = DirectoryStorage(tmp_path, naps)
    await storage.put(KEY, b"former", TYPE)
    full = OSError(errno.ENOSPC, "No space left on device")
    real, faults = os.rename, [full, full]

    def rename(*args: Any) -> None:
        if faults:
            raise faults.pop()
        real(*args)

    monkeypatch.setattr(os, "rename", rename)
    await storage.put(KEY, b"later", TYPE)
    assert naps.taken == [1.0, 2.0]
    faults += [full] * 4
    with pytest.raises(StorageError, match=r"No space left.*IMAGE_STORE_DIR"):
        await storage.put(KEY, b"never", TYPE)
    assert naps.taken == [1.0, 2.0, 1.0, 2.0, 4.0]
    assert (tmp_path / KEY).read_bytes() == b"later"
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["abc-123.webp"]


async def test_the_error_for_an_unwritable_store_names_the_fix(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"a file")
    naps = Naps()
    with pytest.raises(StorageError, match=r"store cannot be written to: .*IMAGE_STORE_DIR"):
        await DirectoryStorage(tmp_path / "store", naps).put(KEY, b"x", TYPE)
    with pytest.raises(StorageError, match="IMAGE_STORE_DIR"):
        await DirectoryStorage(tmp_path / "store").check()


async def test_a_reader_gets_one_object_even_if_it_is_replaced(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    await storage.put(KEY, b"a" * 600_000, TYPE)
    found = await storage.read(KEY)
    assert found is not None
    chunks = [await found.chunks.__anext__()]
    await storage.put(KEY, b"b" * 600_000, TYPE)
    chunks += [chunk async for chunk in found.chunks]
    assert b"".join(chunks) == b"a" * 600_000


async def test_a_link_in_the_store_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "store" / "images").mkdir(parents=True)
    (tmp_path / "store" / KEY).symlink_to(tmp_path / "secret")
    with pytest.raises(StorageError):
        await DirectoryStorage(tmp_path / "store").read(KEY)


async def test_files_separates_objects_from_partial_files(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    assert storage.files() == []
    await storage.put(KEY, b"x", TYPE)
    (tmp_path / "images" / ".abc.1234.part").write_bytes(b"half")
    assert [(file.key, file.path.name) for file in storage.files()] == [
        ("", ".abc.1234.part"),
        (KEY, "abc-123.webp"),
    ]
    # They have no URLs.
    assert await storage.url(KEY, 60) is None


async def test_abandoned_readers_leave_no_open_descriptor(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    await storage.put(KEY, b"x", TYPE)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        assert await storage.read(KEY)
    assert len(os.listdir("/proc/self/fd")) <= before + 2


# -- S3 -------------------------------------------------------------------------------------------


async def test_an_object_has_the_etag_and_can_be_fetched_by_its_url(bucket: Bucket) -> None:
    storage = S3Storage(bucket)
    stored = await storage.put(KEY, b"pixels", TYPE)
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
        await S3Storage(away, naps).put(KEY, b"x", TYPE)
    assert naps.taken == [1.0, 2.0, 4.0]


async def test_a_retry_succeeds_when_the_server_is_back(bucket: Bucket) -> None:
    storage = S3Storage(dataclasses.replace(bucket, endpoint="http://127.0.0.1:9"))

    async def nap(seconds: float) -> None:
        storage._bucket, storage._made = bucket, None

    storage._sleep = nap
    assert (await storage.put(KEY, b"x", TYPE)).size_bytes == 1
    assert await storage.read(KEY)
    await storage.close()


async def test_a_missing_bucket_is_reported_at_once(bucket: Bucket) -> None:
    naps = Naps()
    storage = S3Storage(dataclasses.replace(bucket, name="nobodys-bucket"), naps)
    with pytest.raises(StorageError, match=r"nobodys-bucket.*NoSuchBucket.*IMAGE_S3_BUCKET"):
        await storage.put(KEY, b"x", TYPE)
    with pytest.raises(StorageError, match="IMAGE_S3_BUCKET"):
        await storage.check()
    assert naps.taken == []
    await storage.close()


async def test_missing_logins_are_named(s3_endpoint: str, monkeypatch: Any, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(StorageError, match="AWS_ACCESS_KEY_ID"):
        await S3Storage(Bucket("b", endpoint=s3_endpoint)).check()


async def test_errors_contain_no_secret(bucket: Bucket) -> None:
    hidden = dataclasses.replace(bucket, secret="s3cr3t-value", name="nobodys")
    with pytest.raises(StorageError) as raised:
        await S3Storage(hidden).check()
    assert "s3cr3t-value" not in str(raised.value)


def test_the_check_leaves_no_object(bucket: Bucket) -> None:
    asyncio.run(S3Storage(bucket).check())
    assert "Contents" not in client_of(bucket).list_objects_v2(Bucket=bucket.name)


def test_settings_select_the_storage(monkeypatch: Any, tmp_path: Path) -> None:
    chosen = create_storage(load_settings(WorkerSettings, sluice_data_dir=str(tmp_path)))
    assert isinstance(chosen, DirectoryStorage)
    assert chosen.directory == tmp_path / "images" / "store"
    elsewhere = load_settings(WorkerSettings, image_store_dir="/srv/x", image_spool_dir="/srv/y")
    assert create_storage(elsewhere).directory == Path("/srv/x")  # type: ignore[attr-defined]
    assert create_spool(elsewhere).directory == Path("/srv/y")
    s3 = load_settings(WorkerSettings, image_store="s3", image_s3_bucket="b", **LOGIN)
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

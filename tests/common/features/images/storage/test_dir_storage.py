"""Directory storage: atomic writes, and access for the group."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from common.features.images.storage.base import StorageError
from common.features.images.storage.directory import DirectoryStorage

KEY = "images/abc-123.webp"


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
async def test_the_group_has_access_whatever_the_umask(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "a" / "store")
    await storage.put(KEY, b"x", "image/webp")
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
    await DirectoryStorage(tmp_path / "store").put(KEY, b"x", "image/webp")
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) & 0o777 == 0o770


async def test_a_failed_write_is_retried_and_keeps_the_old_object(
    tmp_path: Path, monkeypatch: Any
) -> None:
    naps = Naps()
    storage = DirectoryStorage(tmp_path, naps)
    await storage.put(KEY, b"former", "image/webp")
    full = OSError(errno.ENOSPC, "No space left on device")
    real, faults = os.rename, [full, full]

    def rename(*args: Any) -> None:
        if faults:
            raise faults.pop()
        real(*args)

    monkeypatch.setattr(os, "rename", rename)
    await storage.put(KEY, b"later", "image/webp")
    assert naps.taken == [1.0, 2.0]
    faults += [full] * 4
    with pytest.raises(StorageError, match=r"No space left.*IMAGE_STORE_DIR"):
        await storage.put(KEY, b"never", "image/webp")
    assert naps.taken == [1.0, 2.0, 1.0, 2.0, 4.0]
    assert (tmp_path / KEY).read_bytes() == b"later"
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["abc-123.webp"]


async def test_the_error_for_an_unwritable_store_names_the_fix(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"a file")
    naps = Naps()
    with pytest.raises(StorageError, match=r"store cannot be written to: .*IMAGE_STORE_DIR"):
        await DirectoryStorage(tmp_path / "store", naps).put(KEY, b"x", "image/webp")
    with pytest.raises(StorageError, match="IMAGE_STORE_DIR"):
        await DirectoryStorage(tmp_path / "store").check()


async def test_a_reader_gets_one_object_even_if_it_is_replaced(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    await storage.put(KEY, b"a" * 600_000, "image/webp")
    found = await storage.read(KEY)
    assert found is not None
    chunks = [await found.chunks.__anext__()]
    await storage.put(KEY, b"b" * 600_000, "image/webp")
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
    await storage.put(KEY, b"x", "image/webp")
    (tmp_path / "images" / ".abc.1234.part").write_bytes(b"half")
    assert [(file.key, file.path.name) for file in storage.files()] == [
        ("", ".abc.1234.part"),
        (KEY, "abc-123.webp"),
    ]
    # They have no URLs.
    assert await storage.url(KEY, 60) is None


async def test_abandoned_readers_leave_no_open_descriptor(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    await storage.put(KEY, b"x", "image/webp")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        assert await storage.read(KEY)
    assert len(os.listdir("/proc/self/fd")) <= before + 2

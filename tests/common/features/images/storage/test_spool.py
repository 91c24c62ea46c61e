"""The spool: uploads appear completely or not at all."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from sluice.common.features.images.storage.spool import Spool

IMAGE, UPLOAD = "0f0e0d0c-1111-4222-8333-444455556666", "0123456789abcdef"


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


def test_a_committed_upload_has_its_size_and_hash(spool: Spool) -> None:
    file = spool.create(IMAGE, UPLOAD)
    file.write(b"some ")
    file.write(b"bytes")
    assert not spool.path(IMAGE, UPLOAD).exists()
    assert file.commit() == (10, hashlib.sha256(b"some bytes").hexdigest())
    assert spool.path(IMAGE, UPLOAD).read_bytes() == b"some bytes"
    assert stat.S_IMODE(spool.path(IMAGE, UPLOAD).stat().st_mode) == 0o640
    assert stat.S_IMODE(spool.directory.stat().st_mode) == 0o2770
    file.discard()
    assert spool.path(IMAGE, UPLOAD).exists()


def test_a_discarded_upload_or_failed_commit_leaves_no_file(spool: Spool, monkeypatch: Any) -> None:
    file = spool.create(IMAGE, UPLOAD)
    file.write(b"some")
    file.discard()
    file.discard()
    assert list(spool.directory.iterdir()) == []
    file = spool.create(IMAGE, UPLOAD)
    file.write(b"some")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        file.commit()
    assert list(spool.directory.iterdir()) == []


def test_removing_is_idempotent(spool: Spool) -> None:
    spool.remove(IMAGE, UPLOAD)
    spool.create(IMAGE, UPLOAD).commit()
    spool.output(IMAGE, UPLOAD, 2).write_bytes(b"made")
    spool.remove(IMAGE, UPLOAD)
    assert [entry.is_part for entry in spool.entries()] == [True]
    spool.remove(IMAGE, UPLOAD, 2)
    assert list(spool.entries()) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "../a", "a.b", "a\0", "x" * 129, "é"])
def test_ids_with_path_separators_are_rejected(spool: Spool, name: str) -> None:
    with pytest.raises(ValueError):
        spool.path(name, UPLOAD)
    with pytest.raises(ValueError):
        spool.create(IMAGE, name)
    assert not spool.directory.exists()


def test_entries_lists_uploads_and_partial_files_only(spool: Spool) -> None:
    assert list(spool.entries()) == []
    spool.create(IMAGE, UPLOAD).commit()
    half = spool.create(IMAGE, "fedcba9876543210")
    spool.output(IMAGE, UPLOAD, 1).write_bytes(b"made")
    (spool.directory / "README").write_text("somebody else's")
    (spool.directory / ".x.part").write_text("likewise")
    found = {(entry.upload_id, entry.is_part) for entry in spool.entries()}
    assert found == {(UPLOAD, False), (UPLOAD, True), ("fedcba9876543210", True)}
    assert {entry.image_id for entry in spool.entries()} == {IMAGE}
    assert all(-1 < entry.age_s < 60 for entry in spool.entries())
    half.discard()


def test_check_passes_for_a_usable_spool_and_raises_otherwise(spool: Spool, tmp_path: Path) -> None:
    spool.check()
    assert list(spool.directory.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        Spool(tmp_path / "file" / "spool").check()

"""The backup archive: a gzipped tar file with a description first and a checksum per member."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from deploy.installer.errors import Unsuitable
from sluice.common.version import REDIS, ServerVersion

FORMAT = 1
CONTENTS = "backup.json"
SNAPSHOT = "redis/dump.rdb"
CONFIG = "etc/"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Contents:
    """The first member of the archive; describes the others."""

    created: str
    release: str
    redis_version: str
    keys: int
    #: SHA-256 by member name.
    files: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT
    #: Redis or Valkey.
    redis_product: str = REDIS

    @property
    def redis_release(self) -> ServerVersion:
        """Product and version of the server that wrote the snapshot."""
        return ServerVersion(self.redis_product, tuple(map(int, self.redis_version.split("."))))


def write(target: Path, contents: Contents, members: dict[str, BinaryIO]) -> None:
    """Writes the archive atomically with mode 0600: it contains passwords."""
    sums = {name: digest(file) for name, file in members.items()}
    description = json.dumps({**asdict(contents), "files": sums}, indent=2).encode()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    temporary = Path(name)  # created with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz") as tar:
                first = tarfile.TarInfo(CONTENTS)
                first.size, first.mode = len(description), 0o600
                tar.addfile(first, io.BytesIO(description))
                for member, content in members.items():
                    content.seek(0)
                    tar.addfile(tar.gettarinfo(arcname=member, fileobj=content), content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def unpack(source: Path, directory: Path) -> Contents:
    """Extracts and verifies all description members into `directory`; raises Unsuitable."""
    try:
        with tarfile.open(source, "r:gz") as tar:
            contents = _read_description(tar)
            for member, expected in contents.files.items():
                _extract(tar, member, expected, directory)
            return contents
    except FileNotFoundError:
        raise Unsuitable(
            f"{source} does not exist", "Give the path of a file that `install.sh backup` wrote."
        ) from None
    except (tarfile.TarError, EOFError, KeyError, ValueError, TypeError, OSError) as error:
        raise Unsuitable(
            f"{source} is not a complete backup: {error}",
            "Use another backup. Nothing was changed.",
        ) from error


def _read_description(tar: tarfile.TarFile) -> Contents:
    file = tar.extractfile(CONTENTS)
    assert file is not None
    contents = Contents(**json.loads(file.read()))
    if contents.format != FORMAT:
        raise ValueError(f"unknown format {contents.format}; expected {FORMAT}")
    return contents


def _extract(tar: tarfile.TarFile, member: str, expected: str, directory: Path) -> None:
    target = (directory / member).resolve()
    if not target.is_relative_to(directory.resolve()):
        raise ValueError(f"{member} points outside the target directory")
    file = tar.extractfile(member)
    if file is None:
        raise ValueError(f"{member} is not a regular file")
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as output:
        while chunk := file.read(_CHUNK):
            output.write(chunk)
    with target.open("rb") as written:
        if digest(written) != expected:
            raise ValueError(f"the checksum of {member} does not match")


def digest(file: BinaryIO) -> str:
    hasher = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()

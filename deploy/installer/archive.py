"""A backup's file: what is in it, in which order, and how one knows that it is whole."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from deploy.installer.errors import Unsuitable

FORMAT = 1
CONTENTS = "backup.json"
SNAPSHOT = "redis/dump.rdb"
CONFIG = "etc/"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Contents:
    """The first member: what the others are."""

    created: str
    release: str
    redis_version: str
    keys: int
    #: Member to its SHA-256.
    files: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def redis_numbers(self) -> tuple[int, ...]:
        """The version that wrote the snapshot."""
        return tuple(int(part) for part in self.redis_version.split("."))


def write(target: Path, contents: Contents, members: dict[str, Path]) -> None:
    """The whole file or none; root's alone, for it has passwords in it."""
    sums = {name: digest(path) for name, path in members.items()}
    described = json.dumps({**asdict(contents), "files": sums}, indent=2).encode()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    neighbour = Path(name)  # mode 0600 from the beginning
    try:
        with os.fdopen(handle, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz") as tar:
                first = tarfile.TarInfo(CONTENTS)
                first.size, first.mode = len(described), 0o600
                tar.addfile(first, io.BytesIO(described))
                for member, path in members.items():
                    tar.add(path, member, recursive=False)
            file.flush()
            os.fsync(file.fileno())
        neighbour.replace(target)
    except BaseException:
        neighbour.unlink(missing_ok=True)
        raise


def unpack(source: Path, directory: Path) -> Contents:
    """Every member that the first one names, checked, below a directory; raises Unsuitable."""
    try:
        with tarfile.open(source, "r:gz") as tar:
            contents = _described(tar)
            for member, expected in contents.files.items():
                _extract(tar, member, expected, directory)
            return contents
    except FileNotFoundError:
        raise Unsuitable(f"there is no file {source}", "Name a file that `backup` wrote.") from None
    except (tarfile.TarError, EOFError, KeyError, ValueError, TypeError, OSError) as error:
        raise Unsuitable(
            f"{source} is no whole backup: {error}",
            "Take another one; of this file nothing was used.",
        ) from error


def _described(tar: tarfile.TarFile) -> Contents:
    file = tar.extractfile(CONTENTS)
    assert file is not None
    contents = Contents(**json.loads(file.read()))
    if contents.format != FORMAT:
        raise ValueError(f"format {contents.format}, and only {FORMAT} is known")
    return contents


def _extract(tar: tarfile.TarFile, member: str, expected: str, directory: Path) -> None:
    target = (directory / member).resolve()
    if not target.is_relative_to(directory.resolve()):
        raise ValueError(f"{member} leads out of the archive")
    file = tar.extractfile(member)
    if file is None:
        raise ValueError(f"{member} is no file")
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as output:
        while chunk := file.read(_CHUNK):
            output.write(chunk)
    if digest(target) != expected:
        raise ValueError(f"{member} is not what was saved (its checksum differs)")


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()

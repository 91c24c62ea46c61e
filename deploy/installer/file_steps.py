"""Directories, files and links: written beside their place, then moved into it."""

from __future__ import annotations

import difflib
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from deploy.installer.host import Host, user_exists
from deploy.installer.steps import Step


@dataclass
class MakeDirectory(Step):
    """A directory with its mode and owner; what lies in it is handed over with it."""

    host: Host
    path: Path
    mode: int = 0o755
    user: str = "root"
    group: str = "root"
    _made: bool = field(default=False, init=False)

    def pending(self) -> str | None:
        """Not there, or not as it should be."""
        if not self.path.is_dir():
            return f"make {self.path} ({self.mode:04o} {self.user}:{self.group})"
        if stat.S_IMODE(self.path.stat().st_mode) != self.mode or self.host.owner_differs(
            self.path, self.user, self.group
        ):
            return f"set {self.path} to {self.mode:04o} {self.user}:{self.group}"
        return None

    def apply(self) -> None:
        """Make it, or mend it."""
        self._made = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(self.mode)
        if self.host.owner_differs(self.path, self.user, self.group):
            self.host.give(self.path, self.user, self.group)
            if self.user != "root":  # data left by an earlier installation, under its numbers
                for inner in self.path.rglob("*"):
                    self.host.give(inner, self.user, self.group)

    def undo(self) -> None:
        """Only if it was ours and is empty."""
        if self._made and not any(self.path.iterdir()):
            self.path.rmdir()


@dataclass
class WriteFile(Step):
    """A file's content, mode and owner."""

    host: Host
    path: Path
    content: str
    mode: int = 0o644
    user: str = "root"
    group: str = "root"
    #: Written once; then it is the operator's.
    once: bool = False
    #: Its content is nobody's business.
    secret: bool = False
    concerns: tuple[str, ...] = ()
    _before: _Kept | None = field(default=None, init=False)

    def pending(self) -> str | None:
        """Another content, mode or owner."""
        if not self.path.is_file() or self.path.is_symlink():
            return f"write {self.path} ({self.mode:04o} {self.user}:{self.group})"
        if self._new_content() != self.path.read_text():
            return f"change {self.path}"
        if stat.S_IMODE(self.path.stat().st_mode) != self.mode or self._other_owner():
            return f"set {self.path} to {self.mode:04o} {self.user}:{self.group}"
        return None

    def diff(self) -> str:
        """Unified, except for secrets."""
        if self.secret:
            return "  (a secret, not shown)"
        before = self.path.read_text() if self.path.is_file() else ""
        source = str(self.path) if self.path.is_file() else "/dev/null"
        return "".join(
            difflib.unified_diff(
                before.splitlines(keepends=True),
                self._new_content().splitlines(keepends=True),
                source,
                str(self.path),
            )
        )

    def apply(self) -> None:
        """Write a neighbour and move it over."""
        self._before = _Kept.of(self.path)
        content = self._new_content()
        write_atomically(self.path, content.encode(), self.mode, self)

    def undo(self) -> None:
        """Put back what was there."""
        if self._before is not None:
            self._before.put_back()

    def own(self, path: Path) -> None:
        """Hand the new file to its owner."""
        self.host.give(path, self.user, self.group)

    def _new_content(self) -> str:
        return self.path.read_text() if self.once and self.path.is_file() else self.content

    def _other_owner(self) -> bool:
        known = self.user == "root" or user_exists(self.user)
        return known and self.host.owner_differs(self.path, self.user, self.group)


@dataclass
class PointTo(Step):
    """A symbolic link, changed in one instant."""

    path: Path
    target: str
    concerns: tuple[str, ...] = ()
    _before: _Kept | None = field(default=None, init=False)

    def pending(self) -> str | None:
        """Not there, or it points elsewhere."""
        if self.path.is_symlink() and os.readlink(self.path) == self.target:
            return None
        return f"point {self.path} to {self.target}"

    def apply(self) -> None:
        """Make a neighbour and move it over."""
        self._before = _Kept.of(self.path)
        link_atomically(self.path, self.target)

    def undo(self) -> None:
        """Point to where it did."""
        if self._before is not None:
            self._before.put_back()


@dataclass
class Remove(Step):
    """A file, or a whole directory. A directory is gone for good: only `uninstall` does that."""

    path: Path
    what: str = ""
    concerns: tuple[str, ...] = ()
    _before: _Kept | None = field(default=None, init=False)

    def pending(self) -> str | None:
        """It is there."""
        present = self.path.exists() or self.path.is_symlink()
        return f"remove {self.path}{f' ({self.what})' if self.what else ''}" if present else None

    def apply(self) -> None:
        """Remove it."""
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self._before = _Kept.of(self.path)
            self.path.unlink()
            _leave(self.path.parent)

    def undo(self) -> None:
        """Put a file back."""
        if self._before is not None:
            self._before.put_back()


@dataclass(frozen=True)
class _Kept:
    """What was at a path before we came."""

    path: Path
    target: str | None
    content: bytes | None
    mode: int
    owner: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> _Kept:
        if path.is_symlink():
            return cls(path, os.readlink(path), None, 0, (0, 0))
        if not path.is_file():
            return cls(path, None, None, 0, (0, 0))
        found = path.stat()
        mode, owner = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
        return cls(path, None, path.read_bytes(), mode, owner)

    def put_back(self) -> None:
        if self.target is not None:
            link_atomically(self.path, self.target)
        elif self.content is not None:
            write_atomically(self.path, self.content, self.mode, self)
        else:
            self.path.unlink(missing_ok=True)
            _leave(self.path.parent)

    def own(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, *self.owner)


def _leave(home: Path) -> None:
    """A directory of drop-ins goes with the last of them."""
    if home.suffix == ".d" and home.is_dir() and not any(home.iterdir()):
        home.rmdir()


def write_atomically(path: Path, content: bytes, mode: int, owner: WriteFile | _Kept) -> None:
    """Never half a file, never for a moment in the wrong hands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    neighbour = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        owner.own(neighbour)
        neighbour.chmod(mode)
        neighbour.replace(path)
    except BaseException:
        neighbour.unlink(missing_ok=True)
        raise


def link_atomically(path: Path, target: str) -> None:
    """The link is the old one or the new one, never missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    neighbour = path.with_name(f".{path.name}.new")
    neighbour.unlink(missing_ok=True)
    neighbour.symlink_to(target)
    neighbour.replace(path)

"""Steps for directories, files and links. Files and links are replaced atomically."""

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
    """Creates a directory with mode and owner; a change of owner includes its contents."""

    host: Host
    path: Path
    mode: int = 0o755
    user: str = "root"
    group: str = "root"
    _created: bool = field(default=False, init=False)

    def pending(self) -> str | None:
        if not self.path.is_dir():
            return f"create {self.path} ({self.mode:04o} {self.user}:{self.group})"
        if stat.S_IMODE(self.path.stat().st_mode) != self.mode or self.host.owner_differs(
            self.path, self.user, self.group
        ):
            return f"set {self.path} to {self.mode:04o} {self.user}:{self.group}"
        return None

    def apply(self) -> None:
        self._created = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(self.mode)
        if self.host.owner_differs(self.path, self.user, self.group):
            self.host.chown(self.path, self.user, self.group)
            if self.user != "root":  # data of an earlier installation, owned by the old user ids
                for child in self.path.rglob("*"):
                    self.host.chown(child, self.user, self.group)

    def undo(self) -> None:
        """Removes the directory if this step created it and it is empty."""
        if self._created and not any(self.path.iterdir()):
            self.path.rmdir()


@dataclass
class WriteFile(Step):
    """Writes a file with content, mode and owner."""

    host: Host
    path: Path
    content: str
    mode: int = 0o644
    user: str = "root"
    group: str = "root"
    #: If True, an existing file is kept: it belongs to the operator.
    once: bool = False
    #: If True, the content is not shown in diffs.
    secret: bool = False
    concerns: tuple[str, ...] = ()
    _before: _Saved | None = field(default=None, init=False)

    def pending(self) -> str | None:
        if not self.path.is_file() or self.path.is_symlink():
            return f"write {self.path} ({self.mode:04o} {self.user}:{self.group})"
        if self._new_content() != self.path.read_text():
            return f"change {self.path}"
        if stat.S_IMODE(self.path.stat().st_mode) != self.mode or self._other_owner():
            return f"set {self.path} to {self.mode:04o} {self.user}:{self.group}"
        return None

    def diff(self) -> str:
        """Unified diff; the content of secrets is not shown."""
        if self.secret:
            return "  (secret, not shown)"
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
        self._before = _Saved.of(self.path)
        content = self._new_content()
        write_atomically(self.path, content.encode(), self.mode, self)

    def undo(self) -> None:
        if self._before is not None:
            self._before.restore()

    def set_owner(self, path: Path) -> None:
        self.host.chown(path, self.user, self.group)

    def _new_content(self) -> str:
        return self.path.read_text() if self.once and self.path.is_file() else self.content

    def _other_owner(self) -> bool:
        known = self.user == "root" or user_exists(self.user)
        return known and self.host.owner_differs(self.path, self.user, self.group)


@dataclass
class Symlink(Step):
    """Creates or changes a symbolic link atomically."""

    path: Path
    target: str
    concerns: tuple[str, ...] = ()
    _before: _Saved | None = field(default=None, init=False)

    def pending(self) -> str | None:
        if self.path.is_symlink() and os.readlink(self.path) == self.target:
            return None
        return f"point {self.path} to {self.target}"

    def apply(self) -> None:
        self._before = _Saved.of(self.path)
        link_atomically(self.path, self.target)

    def undo(self) -> None:
        if self._before is not None:
            self._before.restore()


@dataclass
class Remove(Step):
    """Removes a file or a directory. Removing a directory cannot be undone."""

    path: Path
    what: str = ""
    concerns: tuple[str, ...] = ()
    _before: _Saved | None = field(default=None, init=False)

    def pending(self) -> str | None:
        present = self.path.exists() or self.path.is_symlink()
        return f"remove {self.path}{f' ({self.what})' if self.what else ''}" if present else None

    def apply(self) -> None:
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self._before = _Saved.of(self.path)
            self.path.unlink()
            _remove_empty_drop_ins(self.path.parent)

    def undo(self) -> None:
        """Restores a file; a directory cannot be restored."""
        if self._before is not None:
            self._before.restore()


@dataclass(frozen=True)
class _Saved:
    """The previous file or link at a path, if there was one."""

    path: Path
    target: str | None
    content: bytes | None
    mode: int
    owner: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> _Saved:
        if path.is_symlink():
            return cls(path, os.readlink(path), None, 0, (0, 0))
        if not path.is_file():
            return cls(path, None, None, 0, (0, 0))
        found = path.stat()
        mode, owner = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
        return cls(path, None, path.read_bytes(), mode, owner)

    def restore(self) -> None:
        if self.target is not None:
            link_atomically(self.path, self.target)
        elif self.content is not None:
            write_atomically(self.path, self.content, self.mode, self)
        else:
            self.path.unlink(missing_ok=True)
            _remove_empty_drop_ins(self.path.parent)

    def set_owner(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, *self.owner)


def _remove_empty_drop_ins(directory: Path) -> None:
    """Removes an empty drop-in directory (*.d)."""
    if directory.suffix == ".d" and directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()


def write_atomically(path: Path, content: bytes, mode: int, owner: WriteFile | _Saved) -> None:
    """Writes a temporary file with the right owner and mode, then renames it over `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        owner.set_owner(temporary)
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def link_atomically(path: Path, target: str) -> None:
    """Creates a temporary link, then renames it over `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(path)

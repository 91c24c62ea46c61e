"""Steps for directories, files and links. Files and links are replaced atomically.

No step follows a link: see `nofollow`. A link in the place of a file is replaced.
"""

from __future__ import annotations

import difflib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from deploy.installer import nofollow
from deploy.installer.errors import Unsuitable
from deploy.installer.host import Host, user_exists
from deploy.installer.steps import Step


@dataclass
class MakeDirectory(Step):
    """Creates a directory with mode and owner; a change of owner includes its contents.

    A link in its place is refused.
    """

    host: Host
    path: Path
    mode: int = 0o755
    user: str = "root"
    group: str = "root"
    _created: bool = field(default=False, init=False)

    def pending(self) -> str | None:
        nofollow.refuse_link(self.path)
        found = nofollow.status(self.path)
        if found is None:
            return f"create {self.path} ({self.mode:04o} {self.user}:{self.group})"
        if not stat.S_ISDIR(found.st_mode):
            raise Unsuitable(f"{self.path} is not a directory", "Move it away, then try again.")
        if stat.S_IMODE(found.st_mode) != self.mode or self._other_owner(found):
            return f"set {self.path} to {self.mode:04o} {self.user}:{self.group}"
        return None

    def apply(self) -> None:
        self._created = nofollow.status(self.path) is None
        with nofollow.open_directory(self.path, create=True) as directory:
            if self._other_owner(os.fstat(directory)):
                self.host.give(directory, self.user, self.group)
                if self.user != "root":  # data of an earlier installation, of the old user ids
                    self.host.give_contents(self.path, directory, self.user, self.group)
            os.fchmod(directory, self.mode)

    def undo(self) -> None:
        """Removes the directory if this step created it and it is empty."""
        if self._created:
            nofollow.remove_if_empty(self.path)

    def _other_owner(self, found: os.stat_result) -> bool:
        return self.host.owner_differs(found, self.user, self.group)


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
        found = nofollow.status(self.path)
        if self.once:
            nofollow.refuse_link(self.path)
        if found is None or not stat.S_ISREG(found.st_mode):
            return f"write {self.path} ({self.mode:04o} {self.user}:{self.group})"
        if self._new_content() != nofollow.read_text(self.path):
            return f"change {self.path}"
        if stat.S_IMODE(found.st_mode) != self.mode or self._other_owner(found):
            return f"set {self.path} to {self.mode:04o} {self.user}:{self.group}"
        return None

    def diff(self) -> str:
        """Unified diff; the content of secrets is not shown."""
        if self.secret:
            return "  (secret, not shown)"
        exists = nofollow.is_file(self.path)
        before = nofollow.read_text(self.path) if exists else ""
        source = str(self.path) if exists else "/dev/null"
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
        nofollow.write(self.path, content.encode(), self.mode, self._set_owner)

    def undo(self) -> None:
        if self._before is not None:
            self._before.restore()

    def _set_owner(self, descriptor: int) -> None:
        self.host.give(descriptor, self.user, self.group)

    def _new_content(self) -> str:
        kept = self.once and nofollow.is_file(self.path)
        return nofollow.read_text(self.path) if kept else self.content

    def _other_owner(self, found: os.stat_result) -> bool:
        known = self.user == "root" or user_exists(self.user)
        return known and self.host.owner_differs(found, self.user, self.group)


@dataclass
class Symlink(Step):
    """Creates or changes a symbolic link atomically."""

    path: Path
    target: str
    concerns: tuple[str, ...] = ()
    _before: _Saved | None = field(default=None, init=False)

    def pending(self) -> str | None:
        if nofollow.is_link(self.path) and nofollow.read_link(self.path) == self.target:
            return None
        return f"point {self.path} to {self.target}"

    def apply(self) -> None:
        self._before = _Saved.of(self.path)
        nofollow.link(self.path, self.target)

    def undo(self) -> None:
        if self._before is not None:
            self._before.restore()


@dataclass
class Remove(Step):
    """Removes a file, a link or a directory. Removing a directory cannot be undone."""

    path: Path
    what: str = ""
    concerns: tuple[str, ...] = ()
    _before: _Saved | None = field(default=None, init=False)

    def pending(self) -> str | None:
        if nofollow.status(self.path) is None:
            return None
        return f"remove {self.path}{f' ({self.what})' if self.what else ''}"

    def apply(self) -> None:
        found = nofollow.status(self.path)
        is_directory = found is not None and stat.S_ISDIR(found.st_mode)
        if not is_directory:
            self._before = _Saved.of(self.path)
        nofollow.remove(self.path)
        if not is_directory:
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
        if nofollow.is_link(path):
            return cls(path, nofollow.read_link(path), None, 0, (0, 0))
        if not nofollow.is_file(path):
            return cls(path, None, None, 0, (0, 0))
        with nofollow.open_file(path) as file:
            found = os.fstat(file.fileno())
            mode, owner = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
            return cls(path, None, file.read(), mode, owner)

    def restore(self) -> None:
        if self.target is not None:
            nofollow.link(self.path, self.target)
        elif self.content is not None:
            nofollow.write(self.path, self.content, self.mode, self._set_owner)
        elif nofollow.status(self.path) is not None:
            nofollow.remove(self.path)
            _remove_empty_drop_ins(self.path.parent)

    def _set_owner(self, descriptor: int) -> None:
        if os.geteuid() == 0:
            os.fchown(descriptor, *self.owner)


def _remove_empty_drop_ins(directory: Path) -> None:
    """Removes an empty drop-in directory (*.d)."""
    if directory.suffix == ".d" and nofollow.status(directory) is not None:
        nofollow.remove_if_empty(directory)

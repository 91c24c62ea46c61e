"""The box itself: commands, and who owns what."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.installer.errors import InstallError
from deploy.installer.layout import Layout

#: How much of a failed command's last words is shown.
SHOWN_LINES = 12


class Host:
    """Runs commands; below a `--root` it leaves users and systemd alone."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @property
    def is_live(self) -> bool:
        """Whether users and systemd are ours to change."""
        return self.layout.is_live

    def run(
        self, argv: Sequence[str | Path], fix: str, env: Mapping[str, str] | None = None
    ) -> str:
        """Run a command; its output, or an InstallError with its last words and the fix."""
        words = [str(word) for word in argv]
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, **env} if env else None,
            )
        except OSError as error:
            raise InstallError(f"{words[0]} cannot be run: {error.strerror}", fix) from error
        if done.returncode != 0:
            last = "\n    ".join(done.stdout.strip().splitlines()[-SHOWN_LINES:])
            raise InstallError(f"`{' '.join(words)}` failed:\n    {last}", fix)
        return done.stdout

    def answer(self, argv: Sequence[str]) -> str:
        """What a command says, whether or not it fails; empty where there is no such command."""
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except OSError:
            return ""
        return done.stdout.strip()

    def owner_differs(self, path: Path, user: str, group: str) -> bool:
        """Whether something belongs to somebody else than it should."""
        if not self.is_live:
            return False
        found = path.lstat()
        return (found.st_uid, found.st_gid) != (_uid(user), _gid(group))

    def give(self, path: Path, user: str, group: str) -> None:
        """Hand a file over, unless below a `--root`."""
        if self.is_live:
            shutil.chown(path, user, group)


def user_exists(name: str) -> bool:
    """Whether the box knows a user."""
    return _uid(name) is not None


def group_exists(name: str) -> bool:
    """Whether the box knows a group."""
    return _gid(name) is not None


def members(group: str) -> list[str]:
    """Users listed in a group."""
    try:
        return grp.getgrnam(group).gr_mem
    except KeyError:
        return []


def _uid(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _gid(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None

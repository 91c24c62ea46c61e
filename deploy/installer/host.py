"""Commands, file owners and users of the host."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.installer import nofollow
from deploy.installer.errors import InstallError
from deploy.installer.layout import Layout

#: Number of output lines of a failed command that are shown.
SHOWN_LINES = 12


class Host:
    """Runs commands and sets owners. Below `--root` it changes no users, owners or units."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @property
    def is_live(self) -> bool:
        """True if users and systemd may be changed."""
        return self.layout.is_live

    def run(
        self, argv: Sequence[str | Path], fix: str, env: Mapping[str, str] | None = None
    ) -> str:
        """Returns the output of a command; raises InstallError with its last lines and the fix."""
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
            raise InstallError(f"cannot run {words[0]}: {error.strerror}", fix) from error
        if done.returncode != 0:
            last = "\n    ".join(done.stdout.strip().splitlines()[-SHOWN_LINES:])
            raise InstallError(f"`{' '.join(words)}` failed:\n    {last}", fix)
        return done.stdout

    def query(self, argv: Sequence[str]) -> str:
        """Returns the output of a command even if it fails; empty if the command does not exist."""
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

    def owner_differs(self, found: os.stat_result, user: str, group: str) -> bool:
        if not self.is_live:
            return False
        return (found.st_uid, found.st_gid) != (_uid(user), _gid(group))

    def give(self, descriptor: int, user: str, group: str) -> None:
        """Sets the owner of an open file or directory; does nothing below `--root`."""
        if self.is_live:
            os.fchown(descriptor, *_ids(user, group))

    def give_contents(self, path: Path, directory: int, user: str, group: str) -> None:
        """Sets the owner of everything in an open directory; does nothing below `--root`."""
        if self.is_live:
            nofollow.give_contents(path, directory, *_ids(user, group))


def user_exists(name: str) -> bool:
    return _uid(name) is not None


def group_exists(name: str) -> bool:
    return _gid(name) is not None


def members(group: str) -> list[str]:
    """Members listed in the group database; primary groups do not count."""
    try:
        return grp.getgrnam(group).gr_mem
    except KeyError:
        return []


def _ids(user: str, group: str) -> tuple[int, int]:
    user_id, group_id = _uid(user), _gid(group)
    if user_id is None or group_id is None:
        missing = f"user {user}" if user_id is None else f"group {group}"
        raise InstallError(f"there is no {missing}", "Run `install.sh install`, which creates it.")
    return user_id, group_id


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

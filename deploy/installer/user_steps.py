"""System users without a home or a shell, and the group that they share."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.installer import host
from deploy.installer.host import Host
from deploy.installer.layout import GROUP, MODEL_USER, USERS
from deploy.installer.steps import Step

_FIX = "Look at /etc/passwd and /etc/group for what stands in the way, then run this again."


@dataclass
class MakeGroup(Step):
    """The group whose members may talk to Redis."""

    host: Host
    name: str = GROUP

    def pending(self) -> str | None:
        """Nobody has made it."""
        if not self.host.is_live or host.group_exists(self.name):
            return None
        return f"make the group {self.name}"

    def apply(self) -> None:
        """Make it."""
        self.host.run(["groupadd", "--system", self.name], _FIX)

    def undo(self) -> None:
        """Remove it again."""
        self.host.run(["groupdel", self.name], _FIX)


@dataclass
class MakeUser(Step):
    """A user that owns as little as possible."""

    host: Host
    name: str

    def pending(self) -> str | None:
        """Nobody has made it."""
        if not self.host.is_live or host.user_exists(self.name):
            return None
        return f"make the user {self.name} (no home, no shell)"

    def apply(self) -> None:
        """Make it, with a group of its own."""
        self.host.run(
            [
                *("useradd", "--system", "--user-group", "--no-create-home"),
                *("--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", self.name),
            ],
            _FIX,
        )

    def undo(self) -> None:
        """Remove it again."""
        self.host.run(["userdel", self.name], _FIX)


@dataclass
class JoinGroups(Step):
    """A user in the shared group, and listed in its own.

    A unit may set `Group=` to the shared one; of its own group a process has then only what the
    list says.
    """

    host: Host
    name: str

    def pending(self) -> str | None:
        """It is in one of them not yet."""
        lacking = [group for group in (GROUP, self.name) if self.name not in host.members(group)]
        if not self.host.is_live or not lacking:
            return None
        return f"add {self.name} to {', '.join(lacking)}"

    def apply(self) -> None:
        """Add it."""
        self.host.run(["usermod", "--append", "--groups", f"{GROUP},{self.name}", self.name], _FIX)


@dataclass
class RemoveUser(Step):
    """A user of ours, and its own group."""

    host: Host
    name: str

    def pending(self) -> str | None:
        """It is still there."""
        if self.host.is_live and host.user_exists(self.name):
            return f"remove the user {self.name}"
        return None

    def apply(self) -> None:
        """Remove it."""
        self.host.run(["userdel", self.name], _FIX)
        if host.group_exists(self.name):
            self.host.run(["groupdel", self.name], _FIX)


@dataclass
class RemoveGroup(Step):
    """The shared group."""

    host: Host
    name: str = GROUP

    def pending(self) -> str | None:
        """It is still there."""
        if self.host.is_live and host.group_exists(self.name):
            return f"remove the group {self.name}"
        return None

    def apply(self) -> None:
        """Remove it."""
        self.host.run(["groupdel", self.name], _FIX)


def make_users(box: Host, with_model: bool) -> list[Step]:
    """All of them."""
    return [
        *([MakeUser(box, MODEL_USER)] if with_model else []),
        MakeGroup(box),
        *(MakeUser(box, name) for name in USERS),
        *(JoinGroups(box, name) for name in USERS),
    ]


def remove_users(box: Host) -> list[Step]:
    """All of them again."""
    return [*(RemoveUser(box, name) for name in (*USERS, MODEL_USER)), RemoveGroup(box)]

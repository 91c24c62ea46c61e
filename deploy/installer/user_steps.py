"""Steps for system users, which have no home and no shell, and their shared group."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.installer import host
from deploy.installer.host import Host
from deploy.installer.layout import GROUP, MODEL_USER, USERS
from deploy.installer.steps import Step

_FIX = "Check /etc/passwd and /etc/group for conflicts, then run the command again."


@dataclass
class CreateGroup(Step):
    """Creates the group whose members may connect to Redis."""

    host: Host
    name: str = GROUP

    def pending(self) -> str | None:
        if not self.host.is_live or host.group_exists(self.name):
            return None
        return f"create the group {self.name}"

    def apply(self) -> None:
        self.host.run(["groupadd", "--system", self.name], _FIX)

    def undo(self) -> None:
        self.host.run(["groupdel", self.name], _FIX)


@dataclass
class CreateUser(Step):
    """Creates a system user without home and shell, with its own group."""

    host: Host
    name: str

    def pending(self) -> str | None:
        if not self.host.is_live or host.user_exists(self.name):
            return None
        return f"create the user {self.name} (no home, no shell)"

    def apply(self) -> None:
        self.host.run(
            [
                *("useradd", "--system", "--user-group", "--no-create-home"),
                *("--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", self.name),
            ],
            _FIX,
        )

    def undo(self) -> None:
        self.host.run(["userdel", self.name], _FIX)


@dataclass
class JoinGroups(Step):
    """Adds a user to the shared group and, explicitly, to its own group.

    With `Group=` set to the shared group in a unit, a process has its own group only if the group
    database lists it as a member.
    """

    host: Host
    name: str

    def pending(self) -> str | None:
        missing = [group for group in (GROUP, self.name) if self.name not in host.members(group)]
        if not self.host.is_live or not missing:
            return None
        return f"add {self.name} to {', '.join(missing)}"

    def apply(self) -> None:
        self.host.run(["usermod", "--append", "--groups", f"{GROUP},{self.name}", self.name], _FIX)


@dataclass
class RemoveUser(Step):
    """Removes a user and its own group."""

    host: Host
    name: str

    def pending(self) -> str | None:
        if self.host.is_live and host.user_exists(self.name):
            return f"remove the user {self.name}"
        return None

    def apply(self) -> None:
        self.host.run(["userdel", self.name], _FIX)
        if host.group_exists(self.name):
            self.host.run(["groupdel", self.name], _FIX)


@dataclass
class RemoveGroup(Step):
    """Removes the shared group."""

    host: Host
    name: str = GROUP

    def pending(self) -> str | None:
        if self.host.is_live and host.group_exists(self.name):
            return f"remove the group {self.name}"
        return None

    def apply(self) -> None:
        self.host.run(["groupdel", self.name], _FIX)


def create_users(target: Host, with_model: bool) -> list[Step]:
    return [
        *([CreateUser(target, MODEL_USER)] if with_model else []),
        CreateGroup(target),
        *(CreateUser(target, name) for name in USERS),
        *(JoinGroups(target, name) for name in USERS),
    ]


def remove_users(target: Host) -> list[Step]:
    return [*(RemoveUser(target, name) for name in (*USERS, MODEL_USER)), RemoveGroup(target)]

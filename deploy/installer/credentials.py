"""Redis passwords: generated once, reused by later runs, readable by root only."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from deploy.installer.errors import Unsuitable
from deploy.installer.layout import REDIS_ROLES, SOCKET, Layout


@dataclass(frozen=True)
class Credentials:
    """The Redis password of each role."""

    passwords: dict[str, str]

    @classmethod
    def load_or_make(cls, layout: Layout) -> Credentials:
        """Reads existing passwords; generates missing ones."""
        return cls({role: _password(layout.redis_url(role)) for role in REDIS_ROLES})

    def url(self, role: str) -> str:
        """Content of the role's credential file: the Redis URL."""
        return f"unix://{role}:{self.passwords[role]}@{SOCKET}\n"


def _password(path: Path) -> str:
    if not path.is_file():
        return secrets.token_urlsafe(32)
    found = urlsplit(path.read_text().strip()).password
    if not found:
        raise Unsuitable(
            f"{path} contains no password",
            f"Remove {path}; the next run generates a new password for this role.",
        )
    return unquote(found)

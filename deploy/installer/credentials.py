"""Passwords for Redis: made once, kept by every later run, readable by root alone."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from deploy.installer.errors import Unsuitable
from deploy.installer.layout import REDIS_ROLES, SOCKET, Layout


@dataclass(frozen=True)
class Credentials:
    """Every role's password."""

    passwords: dict[str, str]

    @classmethod
    def load_or_make(cls, layout: Layout) -> Credentials:
        """Those on the box, and new ones where there are none."""
        return cls({role: _password(layout.redis_url(role)) for role in REDIS_ROLES})

    def url(self, role: str) -> str:
        """What the role's service connects to."""
        return f"unix://{role}:{self.passwords[role]}@{SOCKET}\n"


def _password(path: Path) -> str:
    if not path.is_file():
        return secrets.token_urlsafe(32)
    found = urlsplit(path.read_text().strip()).password
    if not found:
        raise Unsuitable(
            f"{path} holds no password",
            f"Remove {path}; the next run makes a new one and tells Redis.",
        )
    return unquote(found)

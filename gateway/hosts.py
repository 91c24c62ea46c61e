"""Which names this gateway answers to: the wall against DNS rebinding.

A page of a foreign site can point its own name at our address and then read our answers as its
own. The browser still tells that name in `Host`, and it is none of ours.
"""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address

from starlette.types import Scope

from common.errors import SettingsError
from gateway.problems import Problem

#: Values of Host that were found good, so that each is looked at once.
REMEMBERED_MAX = 1024
_HOST = re.compile(r"\A(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9._-]{0,252}))(?::[0-9]{0,5})?\Z")
_NAME = re.compile(r"\A(\*\.)?[a-z0-9_]([a-z0-9._-]{0,252})\Z")


class Hosts:
    """Addresses, `localhost`, the machine's own name, and whatever ALLOWED_HOSTS adds."""

    def __init__(self, allowed: str = "", machine: str | None = None) -> None:
        own = _plain(machine if machine is not None else socket.gethostname())
        short = own.partition(".")[0]
        names = {"localhost", own, short, f"{short}.local", *_parsed(allowed)}
        self._names = {name for name in names if name and not name.startswith("*.")}
        endings = {name[1:] for name in names if name.startswith("*.")}
        self._endings = (".localhost", *sorted(endings))
        self._good: set[bytes] = set()

    def check(self, scope: Scope, host: bytes | None) -> None:
        """A Problem for a request that means somebody else; `host` is its Host header."""
        if host is not None and host in self._good:
            return
        if host is None:
            if scope["http_version"] == "1.0":
                return
            raise Problem(400, "malformed_request", "There is no Host header.")
        name = host_name(host)
        if name is None:
            raise Problem(400, "malformed_request", "The Host header is no name and no address.")
        if not self._knows(name):
            raise Problem(
                421,
                "misdirected_request",
                f"This gateway is not called {name}. If it should be, add the name to "
                "ALLOWED_HOSTS.",
            )
        if len(self._good) >= REMEMBERED_MAX:
            self._good.clear()
        self._good.add(host)

    def _knows(self, name: str) -> bool:
        return name in self._names or name.endswith(self._endings) or _is_address(name)


def host_name(host: bytes) -> str | None:
    """A Host header without its port, its case and its last dot; None for what is none."""
    match = _HOST.match(host.decode("latin-1").lower())
    return None if match is None else _plain(match[1])


def the_only(scope: Scope, name: bytes) -> None:
    """A Problem where a header that must be unique came several times."""
    if sum(given == name for given, _ in scope["headers"]) > 1:
        title = name.decode().title()
        raise Problem(400, "malformed_request", f"There is more than one {title} header.")


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return name.startswith("[") or ":" not in name


def _parsed(text: str) -> set[str]:
    """ALLOWED_HOSTS as names; `*.example.com` stands for every name below it."""
    found = set()
    for part in filter(None, map(_plain, text.split(","))):
        if not _NAME.match(part) and not _is_address(part):
            raise SettingsError(
                f"ALLOWED_HOSTS={text!r}: {part!r} must be a name such as box.example.com or "
                "*.example.com, without scheme, port or path"
            )
        found.add(part)
    return found

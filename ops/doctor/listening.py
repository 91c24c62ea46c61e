"""Which TCP ports are listened on, from /proc/net: no command needed, and no root."""

from __future__ import annotations

import ipaddress
import sys
from typing import NamedTuple

from ops.doctor.box import Box

_LISTEN = "0A"
_FILES = ("/proc/net/tcp", "/proc/net/tcp6")


class Listener(NamedTuple):
    """An address that somebody listens on."""

    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int


def listeners(box: Box) -> list[Listener]:
    """All of them; none where the kernel does not tell."""
    found = []
    for file in _FILES:
        for line in (box.read(file) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == _LISTEN:
                address, _, port = words[1].partition(":")
                try:
                    found.append(Listener(_address(address), int(port, 16)))
                except ValueError:
                    continue
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel prints 32-bit words in the machine's own byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    raw = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    address = ipaddress.ip_address(raw)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address

"""Which addresses lead to this machine alone."""

from __future__ import annotations

import ipaddress

_USUAL = frozenset({"127.0.0.1", "::1", "localhost"})


def is_loopback(host: str) -> bool:
    """Whether a host can only be reached from this machine. Any other name may lead anywhere."""
    if host in _USUAL:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback

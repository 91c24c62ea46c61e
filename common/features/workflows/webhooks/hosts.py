"""Allowed webhook targets: public addresses of other hosts, and WORKFLOW_WEBHOOK_ALLOWED_HOSTS."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

SETTING: Final = "WORKFLOW_WEBHOOK_ALLOWED_HOSTS"
MOST_CHARS: Final = 2048
#: Schemes and their ports.
SCHEMES: Final = {"http": 80, "https": 443}
#: From here on ports are not reserved for services of a system, such as mail or file sharing.
FIRST_FREE_PORT: Final = 1024
_URL_CHARS: Final = re.compile(r"\A[!-~]+\Z")
_NETLOC: Final = re.compile(r"\A(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]*)(:[0-9]{0,5})?\Z")
_NAME: Final = re.compile(r"\A(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
                          r"(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\Z")  # fmt: skip
#: The last label of a name that resolvers treat as an address: 127.1, 0x7f000001, 017.
_NUMBER: Final = re.compile(r"(\A|\.)(0x[0-9a-f]*|[0-9]+)\Z")

#: Networks that are not public, independent of the Python version's standard library.
_NOT_PUBLIC_4: Final = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
#: The allocated unicast range of IPv6, and networks in it that are not public (protocol assignments
#: with Teredo, documentation, 6to4).
_UNICAST_6: Final = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    ipaddress.IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
#: Networks to which an allowed name may resolve too: private ones and loopback. Not link-local
#: ones, where clouds serve their metadata: those must be allowed by address.
_BY_NAME: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
        *("::1/128", "fc00::/7"),
    )
)
_LOOPBACK: Final = ipaddress.IPv4Address("127.0.0.1")
#: Networks whose addresses contain an IPv4 address in their last 32 bits.
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class WebhookRefused(ValueError):
    """A webhook URL is not allowed; the message gives the reason and the remedy."""


@dataclass(frozen=True)
class WebhookTarget:
    """The parts of a checked URL."""

    scheme: str
    #: In lower case and without brackets.
    host: str
    port: int
    #: Path and query, never empty.
    path: str
    #: The host, if it is an address.
    address: IpAddress | None = None

    @property
    def is_secure(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == SCHEMES[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The origin of the URL; deliveries to one origin fail and recover together."""
        return f"{self.scheme}://{self.authority}"

    def url_with_address(self, address: IpAddress) -> str:
        """The same URL with an address in place of the name, to pin the connection to it."""
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{self.scheme}://{host}:{self.port}{self.path}"


@dataclass(frozen=True)
class AllowedHosts:
    """Hosts that are allowed in addition to public addresses."""

    #: Names that may resolve to private addresses, loopback and addresses of this host.
    names: frozenset[str] = frozenset()
    networks: tuple[IpNetwork, ...] = field(default=())

    @classmethod
    def parse(cls, text: str) -> AllowedHosts:
        """Parse `127.0.0.1,hooks.lan,192.168.1.0/24`; raises ValueError."""
        names: set[str] = set()
        networks: list[IpNetwork] = []
        for part in filter(None, (each.strip().lower() for each in text.split(","))):
            try:
                networks.append(ipaddress.ip_network(part.strip("[]")))
            except ValueError:
                name = part.rstrip(".")
                if not _NAME.match(name) or _NUMBER.search(name):
                    raise ValueError(
                        f"{part!r} is not a host name, address or network; write them like "
                        "hooks.lan, 127.0.0.1 or 192.168.1.0/24, separated by commas"
                    ) from None
                names.add(name)
        return cls(frozenset(names), tuple(networks))

    def allows(self, host: str, address: IpAddress) -> bool:
        """True if a delivery to `host` may connect to `address`."""
        actual = _unmapped(address)
        if self._contains(address):
            return True
        if host in self.names:
            return is_public(address) or any(_contains(network, actual) for network in _BY_NAME)
        return is_public(address) and not is_own_address(actual)

    def allows_any_port(self, host: str, address: IpAddress | None) -> bool:
        """True if the setting names this host, or the network of this address."""
        return host in self.names or (address is not None and self._contains(address))

    def check(self, host: str, addresses: Iterable[IpAddress]) -> None:
        """Raise WebhookRefused unless all addresses are allowed: any of them may be used."""
        for address in addresses:
            if not self.allows(host, address):
                what = host if host == str(address) else f"{host} is {address}, which"
                why = "an address of this host" if is_public(address) else "not a public address"
                raise WebhookRefused(
                    f"{what} is {why}; if webhooks may go there, add {address} to {SETTING} of "
                    "gateway and workers"
                )

    def _contains(self, address: IpAddress) -> bool:
        either = (address, _unmapped(address))
        return any(_contains(network, each) for network in self.networks for each in either)


def is_public(address: IpAddress) -> bool:
    """True if an address is part of the public internet."""
    actual = _unmapped(address)
    if isinstance(actual, ipaddress.IPv4Address):
        return not any(actual in network for network in _NOT_PUBLIC_4)
    return actual in _UNICAST_6 and not any(actual in network for network in _NOT_PUBLIC_6)


def is_own_address(address: IpAddress) -> bool:
    """True if this host has the address. Its services may be hidden from other hosts by a firewall.

    The kernel uses an own address also as the source to reach it. Nothing is sent.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ipaddress.ip_address(probe.getsockname()[0]) == address
    except OSError:  # not reachable
        return False


def check_url(url: str, allowed: AllowedHosts) -> WebhookTarget:
    """The parts of a webhook URL; raises WebhookRefused.

    If the host is a name, its addresses are checked at each delivery.
    """
    if len(url) > MOST_CHARS:
        raise WebhookRefused(f"the URL has more than {MOST_CHARS} characters")
    if not _URL_CHARS.match(url) or "\\" in url:
        raise WebhookRefused(
            "the URL has characters that must be percent-encoded, such as %20; write a host name "
            "in its ASCII form, such as xn--bcher-kva.example"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise WebhookRefused(f"the URL cannot be read: {error}") from None
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES:
        raise WebhookRefused("the URL must begin with https:// or http://")
    if "@" in parts.netloc:
        raise WebhookRefused("the URL must not contain a user name or password")
    if not _NETLOC.match(parts.netloc):
        raise WebhookRefused(f"{parts.netloc!r} is not a host with an optional port")
    if "#" in url:
        raise WebhookRefused("the URL must not have a fragment (#…): it is never sent to a server")
    if port == 0:
        raise WebhookRefused("port 0 is not valid")
    host, address = _host(parts.hostname or "", in_brackets="[" in parts.netloc)
    is_localhost = host == "localhost" or host.endswith(".localhost")  # always loopback
    known = _LOOPBACK if is_localhost else address
    if known is not None:
        allowed.check(host, (known,))
    port = port or SCHEMES[scheme]
    is_free = port in SCHEMES.values() or port >= FIRST_FREE_PORT
    if not is_free and not allowed.allows_any_port(host, known):
        raise WebhookRefused(
            f"port {port} is not for webhooks: use 80, 443, or {FIRST_FREE_PORT} and above; if "
            f"webhooks may go there, add {host} to {SETTING} of gateway and workers"
        )
    path = parts.path or "/"
    target = f"{path}?{parts.query}" if parts.query else path
    return WebhookTarget(scheme, host, port, target, address)


def _host(written: str, in_brackets: bool) -> tuple[str, IpAddress | None]:
    if in_brackets:
        try:
            address = ipaddress.IPv6Address(written)
            return str(address), address
        except ValueError:
            raise WebhookRefused(f"[{written}] is not an IPv6 address") from None
    name = written.removesuffix(".")
    if _NUMBER.search(name):
        try:
            return name, ipaddress.IPv4Address(name)
        except ValueError:
            raise WebhookRefused(
                f"{written!r} is not a host; write an IPv4 address as four numbers, like 192.0.2.7"
            ) from None
    if not _NAME.match(name):
        problem = f"{written!r} is not a host name" if written else "the URL has no host"
        raise WebhookRefused(problem)
    return name, None


def _unmapped(address: IpAddress) -> IpAddress:
    """The IPv4 address in an IPv4-mapped or NAT64 address; others are returned as they are."""
    if isinstance(address, ipaddress.IPv6Address) and (address in _MAPPED or address in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _contains(network: IpNetwork, address: IpAddress) -> bool:
    return network.version == address.version and address in network

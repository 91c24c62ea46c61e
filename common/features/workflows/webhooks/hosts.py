"""Where webhooks may go: public addresses, and what WORKFLOW_WEBHOOK_ALLOWED_HOSTS adds."""

from __future__ import annotations

import ipaddress
import re
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
_URL_CHARS: Final = re.compile(r"\A[!-~]+\Z")
_NETLOC: Final = re.compile(r"\A(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]*)(:[0-9]{0,5})?\Z")
_NAME: Final = re.compile(r"\A(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
                          r"(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\Z")  # fmt: skip
#: How the last label of a name looks that resolvers take for an address: 127.1, 0x7f000001, 017.
_NUMBER: Final = re.compile(r"(\A|\.)(0x[0-9a-f]*|[0-9]+)\Z")

#: What of IPv4 is not the public internet, whatever the standard library of this Python says.
_NOT_PUBLIC_4: Final = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
#: All that is given out of IPv6 for unicast, and what of it is not public. (Protocol assignments
#: with Teredo, documentation, 6to4.)
_UNICAST_6: Final = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    ipaddress.IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
#: What a name that is allowed may lead to besides: private networks and this machine. Not what is
#: link-local, where clouds give out their secrets: only such an address itself allows it.
_BY_NAME: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
        *("::1/128", "fc00::/7"),
    )
)
_LOOPBACK: Final = ipaddress.IPv4Address("127.0.0.1")
#: Where the last 32 bits are the IPv4 address that is really meant.
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class WebhookRefused(ValueError):
    """A webhook may not go there; the message says why, and what would help."""


@dataclass(frozen=True)
class WebhookTarget:
    """A URL that was checked, in its parts."""

    scheme: str
    #: As in the URL, in lower case and without brackets.
    host: str
    port: int
    #: Path and query, never empty.
    path: str
    #: The host, where it is an address itself.
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
        """Who is behind it: deliveries to one origin share its fate."""
        return f"{self.scheme}://{self.authority}"

    def url_with_address(self, address: IpAddress) -> str:
        """The same URL with an address in place of the name, for a connection to nobody else."""
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{self.scheme}://{host}:{self.port}{self.path}"


@dataclass(frozen=True)
class AllowedHosts:
    """What is allowed beside public addresses."""

    #: May resolve to private addresses and to this machine.
    names: frozenset[str] = frozenset()
    networks: tuple[IpNetwork, ...] = field(default=())

    @classmethod
    def parse(cls, text: str) -> AllowedHosts:
        """`127.0.0.1,hooks.lan,192.168.1.0/24`; raises ValueError for what is none of these."""
        names: set[str] = set()
        networks: list[IpNetwork] = []
        for part in filter(None, (each.strip().lower() for each in text.split(","))):
            try:
                networks.append(ipaddress.ip_network(part.strip("[]")))
            except ValueError:
                name = part.rstrip(".")
                if not _NAME.match(name) or _NUMBER.search(name):
                    raise ValueError(
                        f"{part!r} is no host name, address or network; write them like "
                        "hooks.lan, 127.0.0.1 or 192.168.1.0/24, separated by commas"
                    ) from None
                names.add(name)
        return cls(frozenset(names), tuple(networks))

    def allows(self, host: str, address: IpAddress) -> bool:
        """Whether a delivery to `host` may connect to `address`."""
        meant = _unmapped(address)
        if any(_contains(network, each) for network in self.networks for each in (address, meant)):
            return True
        if host in self.names and any(_contains(network, meant) for network in _BY_NAME):
            return True
        return is_public(address)

    def check(self, host: str, addresses: Iterable[IpAddress]) -> None:
        """Raise WebhookRefused unless all of them are allowed: one of them will be connected to."""
        for address in addresses:
            if not self.allows(host, address):
                what = host if host == str(address) else f"{host} is {address}, which"
                raise WebhookRefused(
                    f"{what} is no public address; if webhooks may go there, add {address} to "
                    f"{SETTING} of gateway and workers"
                )


def is_public(address: IpAddress) -> bool:
    """Whether an address belongs to the internet that everybody shares."""
    meant = _unmapped(address)
    if isinstance(meant, ipaddress.IPv4Address):
        return not any(meant in network for network in _NOT_PUBLIC_4)
    return meant in _UNICAST_6 and not any(meant in network for network in _NOT_PUBLIC_6)


def check_url(url: str, allowed: AllowedHosts) -> WebhookTarget:
    """A webhook's URL in its parts; raises WebhookRefused.

    Where the host is a name, its addresses are checked at each delivery.
    """
    if len(url) > MOST_CHARS:
        raise WebhookRefused(f"the URL has more than {MOST_CHARS} characters")
    if not _URL_CHARS.match(url) or "\\" in url:
        raise WebhookRefused(
            "the URL has characters that must be written as %20 and the like; write a host name "
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
        raise WebhookRefused("the URL must not hold a user name or password")
    if not _NETLOC.match(parts.netloc):
        raise WebhookRefused(f"{parts.netloc!r} is no host with an optional port")
    if "#" in url:
        raise WebhookRefused("the URL must not have a fragment (#…): no server would see it")
    if port == 0:
        raise WebhookRefused("port 0 is none")
    host, address = _host(parts.hostname or "", in_brackets="[" in parts.netloc)
    if address is not None:
        allowed.check(host, (address,))
    elif host == "localhost" or host.endswith(".localhost"):  # never anything else
        allowed.check(host, (_LOOPBACK,))
    path = parts.path or "/"
    target = f"{path}?{parts.query}" if parts.query else path
    return WebhookTarget(scheme, host, port or SCHEMES[scheme], target, address)


def _host(written: str, in_brackets: bool) -> tuple[str, IpAddress | None]:
    if in_brackets:
        try:
            address = ipaddress.IPv6Address(written)
            return str(address), address
        except ValueError:
            raise WebhookRefused(f"[{written}] is no IPv6 address") from None
    name = written.removesuffix(".")
    if _NUMBER.search(name):
        try:
            return name, ipaddress.IPv4Address(name)
        except ValueError:
            raise WebhookRefused(
                f"{written!r} is no host; write an IPv4 address as four numbers, such as 192.0.2.7"
            ) from None
    if not _NAME.match(name):
        raise WebhookRefused(f"{written!r} is no host name" if written else "the URL has no host")
    return name, None


def _unmapped(address: IpAddress) -> IpAddress:
    """The IPv4 address inside an IPv6 one that only carries it."""
    if isinstance(address, ipaddress.IPv6Address) and (address in _MAPPED or address in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _contains(network: IpNetwork, address: IpAddress) -> bool:
    return network.version == address.version and address in network

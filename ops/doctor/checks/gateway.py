"""Checks of the gateway: reachability, readiness, network exposure and version."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import sys
import urllib.error
from collections.abc import Mapping
from http.client import HTTPException
from typing import NamedTuple
from urllib.parse import urlsplit

from sluice.common.process.host import is_loopback
from sluice.ops.doctor.checks.systemd import GATEWAY, REDIS, services
from sluice.ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from sluice.ops.doctor.machine import REQUEST_S, Machine
from sluice.ops.http import Response

_LISTEN = "0A"
_SOCKET_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


class Listener(NamedTuple):
    """An address with a listening TCP socket."""

    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int


def listeners(machine: Machine) -> list[Listener]:
    """All listening TCP sockets; empty if the kernel does not list them."""
    found = []
    for file in _SOCKET_TABLES:
        for line in (machine.read(file) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == _LISTEN:
                address, _, port = words[1].partition(":")
                try:
                    found.append(Listener(_address(address), int(port, 16)))
                except ValueError:
                    continue
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse the kernel's format: 32-bit words in the machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    raw = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    address = ipaddress.ip_address(raw)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


#: Ids of users who are persons, and the ends of shells that refuse a login.
FIRST_UID, NOBODY_UID = 1000, 65534
NO_LOGIN = ("nologin", "false")
#: A job that does not exist: 404 for an authorised caller, 401 if a key is required.
UNKNOWN_JOB = "/v1/jobs/00000000-0000-4000-8000-000000000000"
OK, UNAUTHORIZED, FORBIDDEN = 200, 401, 403
NO_HEADERS: Mapping[str, str] = {}


@check(
    "gateway.answers",
    "the gateway answers `/healthz` at `--url`, `SLUICE_URL` or 127.0.0.1:8080",
    "`sudo systemctl start redis-gateway.socket redis-gateway`, or `sluice up`; if another program "
    "uses the port, set another `PORT`",
)
def answers(machine: Machine) -> Finding:
    try:
        answer = machine.fetch(f"{machine.url}/healthz", REQUEST_S, {})
    except (OSError, HTTPException, ValueError) as error:
        return _no_answer(machine, error)
    if answer.status == OK and _member(answer.body, "ok") is True:
        return ok(f"{machine.url} answers")
    port = _port(machine.url)
    return fail(
        f"the server at {machine.url} is not a Sluice gateway (HTTP {answer.status})",
        f"another program uses port {port}",
        f"find it with sudo ss -ltnp 'sport = :{port}' and stop it, or set another PORT",
    )


def _no_answer(machine: Machine, error: Exception) -> Finding:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    start = machine.remedies.start_gateway
    if isinstance(reason, ConnectionRefusedError):
        cause = "connection refused: the gateway is not running, or uses another port"
        return fail(f"no gateway at {machine.url}", cause, f"{start}; or set --url")
    if isinstance(reason, TimeoutError):
        cause = "it accepts the connection but does not respond: its event loop is blocked"
        remedies = machine.remedies
        fix = f"{remedies.log_of('redis-gateway')}; {remedies.restart('redis-gateway')}"
        return fail(f"{machine.url} does not answer within {REQUEST_S:.0f} s", cause, fix)
    if isinstance(reason, socket.gaierror | ValueError):
        return fail(f"{machine.url} is not reachable", str(reason), "set the URL with --url")
    if isinstance(reason, HTTPException):
        port = _port(machine.url)
        cause = f"another program uses port {port}, and it does not speak HTTP"
        return fail(f"{machine.url}: {reason}", cause, f"sudo ss -ltnp 'sport = :{port}'")
    return fail(f"no gateway at {machine.url}", str(reason), start)


@check(
    "gateway.ready",
    "the gateway can write to Redis (`/readyz`)",
    "see the `redis` checks; with ACLs check the gateway's user: `journalctl -u redis-gateway`",
)
def ready(machine: Machine) -> Finding:
    answer = _ask(machine, "/readyz")
    if answer.status == OK:
        return ok("the gateway accepts jobs")
    detail = _member(answer.body, "detail") or f"HTTP {answer.status}"
    return fail(
        f"not ready: {detail}",
        "the gateway cannot write to Redis",
        f"see the redis checks above; {machine.remedies.log_of('redis-gateway')}",
    )


@check(
    "gateway.exposure",
    "requests from other machines need an API key",
    "`AUTH=auto` (the default) or `required`, and `sluice key create`; or `HOST=127.0.0.1`",
)
def exposure(machine: Machine) -> Finding:
    """Without keys, every client that reaches the gateway can run jobs and read results."""
    needs_key = _ask(machine, UNKNOWN_JOB).status in (UNAUTHORIZED, FORBIDDEN)
    port = _port(machine.url)
    addresses = [address for address in listeners(machine) if address.port == port]
    beyond = sorted({str(address.ip) for address in addresses if not address.ip.is_loopback})
    keys = "requires API keys" if needs_key else "requires no API keys"
    if not addresses and not is_loopback(urlsplit(machine.url).hostname or ""):
        beyond = [str(urlsplit(machine.url).hostname)]
    if not beyond:
        return ok(f"loopback only, {keys}")
    if needs_key:
        return ok(f"listens on {', '.join(beyond)} and {keys}")
    return fail(
        f"listens on {', '.join(beyond)} and {keys}",
        "anyone on the network can run jobs and read results",
        "set AUTH=required and create a key with `sluice key create`, or set HOST=127.0.0.1",
    )


@check(
    "gateway.local_access",
    "workers and other local users need an API key, too",
    "`AUTH=required` in /etc/sluice/gateway.env, `sudo sluice key create --scope admin --name "
    "NAME`, then `sudo systemctl restart redis-gateway`",
)
def local_access(machine: Machine) -> Finding:
    """Without keys, a compromised handler or another user of this machine is an administrator."""
    if not is_loopback(urlsplit(machine.url).hostname or ""):
        raise CheckSkipped("the gateway is on another machine")
    if _ask(machine, UNKNOWN_JOB).status in (UNAUTHORIZED, FORBIDDEN):
        return ok("requires API keys on loopback, too")
    found = [*_units_on_loopback(machine), *_other_users(machine)]
    if not found:
        return ok("requires no API keys; no worker unit and no other login user can reach it")
    return warn(
        f"requires no API keys, and can be reached by {', '.join(found)}",
        "each of them may read, submit and cancel jobs of all tenants, and create an admin key",
        _require_keys(machine),
    )


def _require_keys(machine: Machine) -> str:
    create = "sluice key create --scope admin --name NAME"
    restart = machine.remedies.restart("redis-gateway")
    if machine.remedies.installed:
        return (
            f"set AUTH=required in /etc/sluice/gateway.env, create a key with `sudo {create}`, "
            f"then {restart}"
        )
    return f"create a key with `{create}`, then {restart}, with AUTH=required"


def _units_on_loopback(machine: Machine) -> list[str]:
    """Running units of workers and of the model server that may connect to the gateway."""
    try:
        units = list(services(machine))
    except CheckSkipped:  # no systemd, or nothing installed
        return []
    others = (REDIS, GATEWAY)
    return [
        unit.name
        for unit in units
        if unit.name not in others and unit.active == "active" and unit.reaches_loopback
    ]


def _other_users(machine: Machine) -> list[str]:
    """Users who can log in, except root and the one who runs this command."""
    own = {str(os.getuid()), machine.environ.get("SUDO_UID", "")}
    found = []
    for line in (machine.read("/etc/passwd") or "").splitlines():
        name, _, uid, *rest = [*line.split(":"), "", "", ""]
        is_person = uid.isdecimal() and FIRST_UID <= int(uid) < NOBODY_UID
        shell = rest[3] if len(rest) > 3 else ""
        if is_person and uid not in own and not shell.endswith(NO_LOGIN):
            found.append(f"the user {name}")
    return found


@check(
    "gateway.version",
    "gateway and command line have the same version",
    "`sudo deploy/install.sh upgrade`, then `sudo systemctl restart redis-gateway`",
)
def version(machine: Machine) -> Finding:
    """After an upgrade without a restart, the process still runs the old code."""
    key = machine.environ.get("SLUICE_API_KEY", "").strip()
    answer = _ask(machine, "/openapi.json", {"Authorization": f"Bearer {key}"} if key else {})
    if answer.status in (UNAUTHORIZED, FORBIDDEN):
        raise CheckSkipped("the gateway requires a key; set SLUICE_API_KEY")
    info = _member(answer.body, "info") if answer.status == OK else None
    found = info.get("version") if isinstance(info, dict) else None
    if not isinstance(found, str):
        raise CheckSkipped("the gateway does not report its version")
    if found == machine.version:
        return ok(f"gateway {found}")
    return note(
        f"gateway {found}, command line {machine.version}",
        "the gateway was not restarted after an upgrade, or belongs to another installation",
        machine.remedies.restart("redis-gateway"),
    )


def _ask(machine: Machine, path: str, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    try:
        return machine.fetch(f"{machine.url}{path}", REQUEST_S, headers)
    except (OSError, HTTPException, ValueError):
        raise CheckSkipped("the gateway does not answer") from None


def _member(body: bytes, name: str) -> object:
    try:
        whole = json.loads(body)
    except ValueError:
        return None
    return whole.get(name) if isinstance(whole, dict) else None


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


CHECKS = (answers, ready, exposure, local_access, version)

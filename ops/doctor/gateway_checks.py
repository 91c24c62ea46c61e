"""The gateway: does it answer, can it serve, and who can reach it?"""

from __future__ import annotations

import json
import socket
import urllib.error
from collections.abc import Mapping
from http.client import HTTPException
from urllib.parse import urlsplit

from common.network import is_loopback
from ops.doctor.box import REQUEST_S, Box
from ops.doctor.finding import Finding, Unable, check, fail, note, ok
from ops.doctor.listening import listeners
from ops.fetching import Answer

#: A job that nobody has: whoever may ask gets 404, whoever needs a key 401.
NOBODYS_JOB = "/v1/jobs/00000000-0000-4000-8000-000000000000"
OK, UNAUTHORIZED, FORBIDDEN = 200, 401, 403
NO_HEADERS: Mapping[str, str] = {}


@check(
    "gateway.answers",
    "the gateway answers `/healthz` at `--url`, `SLUICE_URL` or 127.0.0.1:8080",
    "`sudo systemctl start redis-gateway.socket redis-gateway`, or `sluice up`; where somebody "
    "else has the port, another `PORT`",
)
def answers(box: Box) -> Finding:
    """Whether it is there, and is ours."""
    try:
        answer = box.fetch(f"{box.url}/healthz", REQUEST_S, {})
    except (OSError, HTTPException, ValueError) as error:
        return _no_answer(box, error)
    if answer.status == OK and _member(answer.body, "ok") is True:
        return ok(f"{box.url} answers")
    port = _port(box.url)
    return fail(
        f"what answers at {box.url} is no gateway of Sluice ({answer.status})",
        f"somebody else has port {port}",
        f"sudo ss -ltnp 'sport = :{port}' tells who; end it, or give the gateway another PORT",
    )


def _no_answer(box: Box, error: Exception) -> Finding:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    start = box.remedies.start_gateway
    if isinstance(reason, ConnectionRefusedError):
        cause = "nobody listens there: it is not running, or on another port"
        return fail(f"no gateway at {box.url}", cause, f"{start}; or name it with --url")
    if isinstance(reason, TimeoutError):
        cause = "it takes the connection and says nothing: its loop stands still"
        fix = f"{box.remedies.log_of('redis-gateway')}; {box.remedies.restart('redis-gateway')}"
        return fail(f"{box.url} does not answer within {REQUEST_S:.0f} s", cause, fix)
    if isinstance(reason, socket.gaierror | ValueError):
        return fail(f"{box.url} cannot be asked", str(reason), "give a URL with --url")
    if isinstance(reason, HTTPException):
        port = _port(box.url)
        cause = f"somebody else has port {port}, and does not speak HTTP"
        return fail(f"{box.url}: {reason}", cause, f"sudo ss -ltnp 'sport = :{port}'")
    return fail(f"no gateway at {box.url}", str(reason), start)


@check(
    "gateway.ready",
    "the gateway can write to Redis (`/readyz`)",
    "look at the `redis` checks; under ACLs at the gateway's user: `journalctl -u redis-gateway`",
)
def ready(box: Box) -> Finding:
    """It answers, but can it take jobs?"""
    answer = _ask(box, "/readyz")
    if answer.status == OK:
        return ok("it takes jobs")
    detail = _member(answer.body, "detail") or f"HTTP {answer.status}"
    return fail(
        f"not ready: {detail}",
        "Redis does not take the gateway's writes",
        f"see the checks of redis above; {box.remedies.log_of('redis-gateway')}",
    )


@check(
    "gateway.exposure",
    "beyond loopback every request needs an API key",
    "`AUTH=auto` (the default) or `required`, and `sluice key create`; or `HOST=127.0.0.1`",
)
def exposure(box: Box) -> Finding:
    """Whoever reaches an open gateway may run jobs and read results."""
    needs_key = _ask(box, NOBODYS_JOB).status in (UNAUTHORIZED, FORBIDDEN)
    port = _port(box.url)
    addresses = [address for address in listeners(box) if address.port == port]
    beyond = sorted({str(address.ip) for address in addresses if not address.ip.is_loopback})
    keys = "asks for keys" if needs_key else "asks for no keys"
    if not addresses and not is_loopback(urlsplit(box.url).hostname or ""):
        beyond = [str(urlsplit(box.url).hostname)]
    if not beyond:
        return ok(f"loopback only, {keys}")
    if needs_key:
        return ok(f"listens on {', '.join(beyond)} and {keys}")
    return fail(
        f"listens on {', '.join(beyond)} and {keys}",
        "anybody in the network may run jobs and read results",
        "set AUTH=required and make a key with `sluice key create`, or HOST=127.0.0.1",
    )


@check(
    "gateway.version",
    "gateway and this command are of one version",
    "`sudo deploy/install.sh upgrade`, then `sudo systemctl restart redis-gateway`",
)
def version(box: Box) -> Finding:
    """After an upgrade a process may still run the old code."""
    key = box.environ.get("SLUICE_API_KEY", "").strip()
    answer = _ask(box, "/openapi.json", {"Authorization": f"Bearer {key}"} if key else {})
    if answer.status in (UNAUTHORIZED, FORBIDDEN):
        raise Unable("the gateway asks for a key; set SLUICE_API_KEY")
    info = _member(answer.body, "info") if answer.status == OK else None
    found = info.get("version") if isinstance(info, dict) else None
    if not isinstance(found, str):
        raise Unable("the gateway does not tell its version")
    if found == box.version:
        return ok(f"gateway {found}")
    return note(
        f"gateway {found}, this command {box.version}",
        "an upgrade was made without a restart, or this command is of another installation",
        box.remedies.restart("redis-gateway"),
    )


def _ask(box: Box, path: str, headers: Mapping[str, str] = NO_HEADERS) -> Answer:
    try:
        return box.fetch(f"{box.url}{path}", REQUEST_S, headers)
    except (OSError, HTTPException, ValueError):
        raise Unable("the gateway does not answer") from None


def _member(body: bytes, name: str) -> object:
    try:
        whole = json.loads(body)
    except ValueError:
        return None
    return whole.get(name) if isinstance(whole, dict) else None


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


CHECKS = (answers, ready, exposure, version)

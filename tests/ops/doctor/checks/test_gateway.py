"""Checks of the gateway with scripted HTTP responses."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.error
from collections.abc import Mapping
from pathlib import Path

import pytest

from sluice.ops.doctor.checks import gateway as checks
from sluice.ops.doctor.checks.gateway import listeners
from sluice.ops.doctor.finding import Health
from sluice.ops.doctor.machine import Machine
from sluice.ops.http import Response, fetch_url
from tests.ops.doctor.checks.test_systemd import RUNNING, Systemd
from tests.ops.doctor.machines import (
    answering,
    expect,
    expect_skipped,
    finding_of,
    make_machine,
    write,
)

YES = Response(200, b'{"ok":true}')
HEAD = "  sl  local_address rem_address   st tx_queue\n"
LOOPBACK = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n"
EVERYWHERE = "   1: 00000000:1F90 00000000:0000 0A 00000000:00000000\n"
CONNECTED = "   2: 00000000:1F90 0100007F:0001 01 00000000:00000000\n"
SIX = "   0: 00000000000000000000000000000000:1F90 00000000:0000 0A 0:0\n"
SIX_LOOPBACK = "   0: 00000000000000000000000001000000:1F90 00000000:0000 0A 0:0\n"
SIX_MAPPED = "   0: 0000000000000000FFFF00000100007F:1F90 00000000:0000 0A 0:0\n"


def machine_with(root: Path, **answers: Response) -> Machine:
    return make_machine(root, fetch=answering(**answers))


def test_gateway_answers(tmp_path: Path) -> None:
    subject = machine_with(tmp_path, healthz=YES, readyz=YES)
    expect(checks.answers, subject, Health.OK)
    expect(checks.ready, subject, Health.OK)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(), "connection refused"),
        (urllib.error.URLError(ConnectionRefusedError()), "connection refused"),
        (TimeoutError("timed out"), "does not respond"),
        (urllib.error.URLError(socket.gaierror(-2, "Name or service not known")), "not known"),
        (http.client.BadStatusLine("SSH-2.0"), "does not speak HTTP"),
        (OSError("no route"), "no route"),
    ],
)
def test_gateway_does_not_answer(tmp_path: Path, error: Exception, expected: str) -> None:
    def fetch(url: str, timeout_s: float, headers: Mapping[str, str]) -> Response:
        raise error

    subject = make_machine(tmp_path, fetch=fetch)
    expect(checks.answers, subject, Health.FAIL, cause=expected)
    for check in (checks.ready, checks.exposure, checks.local_access, checks.version):
        expect_skipped(check, subject)


@pytest.mark.parametrize(
    "answer",
    [Response(200, b"<html>"), Response(404, b"{}"), Response(200, b"[1]"), Response(302, b"")],
)
def test_another_program_uses_the_port(tmp_path: Path, answer: Response) -> None:
    fix = "ss -ltnp 'sport = :8080'"
    expect(checks.answers, machine_with(tmp_path, healthz=answer), Health.FAIL, fix=fix)


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (Response(503, b'{"detail":"Redis is away"}'), "not ready: Redis is away"),
        (Response(500, b""), "not ready: HTTP 500"),
    ],
)
def test_gateway_is_not_ready(tmp_path: Path, answer: Response, seen: str) -> None:
    found = expect(checks.ready, machine_with(tmp_path, readyz=answer), Health.FAIL)
    assert found.seen == seen


@pytest.mark.parametrize(
    ("four", "six", "code", "status"),
    [
        (LOOPBACK, "", 404, Health.OK),
        (LOOPBACK + CONNECTED, SIX_LOOPBACK, 404, Health.OK),
        (EVERYWHERE, "", 404, Health.FAIL),
        (EVERYWHERE, "", 401, Health.OK),
        ("", SIX, 404, Health.FAIL),
        ("", SIX_MAPPED, 404, Health.OK),
        ("", "", 404, Health.OK),
    ],
)
def test_exposure(tmp_path: Path, four: str, six: str, code: int, status: Health) -> None:
    write(tmp_path, "/proc/net/tcp", HEAD + four)
    write(tmp_path, "/proc/net/tcp6", HEAD + six)
    expect(checks.exposure, machine_with(tmp_path, others=Response(code, b"{}")), status)


@pytest.mark.parametrize(("code", "status"), [(404, Health.FAIL), (401, Health.OK)])
def test_remote_gateway_needs_keys(tmp_path: Path, code: int, status: Health) -> None:
    fetch = answering(others=Response(code, b"{}"))
    subject = make_machine(tmp_path, fetch=fetch, url="http://host.lan:8080")
    expect(checks.exposure, subject, status)


NO_NETWORK = {"PrivateNetwork": "yes"}
LOCALHOST = {"IPAddressDeny": "0.0.0.0/0 ::/0", "IPAddressAllow": "127.0.0.0/8 ::1/128"}
SECOND = {"IPAddressDeny": "0.0.0.0/0 ::/0", "IPAddressAllow": "127.0.0.2/32"}
PASSWD = """\
root:x:0:0:root:/root:/bin/bash
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
mina:x:1000:1000:,,,:/home/mina:/bin/bash
locked:x:1001:1001::/home/locked:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/bin/sh
"""


@pytest.mark.parametrize(
    ("properties", "status"),
    [
        *((NO_NETWORK, Health.OK), (SECOND, Health.OK)),
        *((LOCALHOST, Health.WARN), ({}, Health.WARN)),
        ({**LOCALHOST, "ActiveState": "inactive"}, Health.OK),
    ],
)
def test_workers_that_reach_a_keyless_gateway(
    tmp_path: Path, properties: dict[str, str], status: Health
) -> None:
    systemd = Systemd(tmp_path)
    systemd.units = {name: {**RUNNING, **NO_NETWORK} for name in systemd.units}
    for name in ("redis-worker@ai.service", "redis-gateway.service"):
        systemd.units[name] = {**RUNNING, **properties}
    subject = make_machine(tmp_path, run=systemd.run, fetch=answering())
    found = expect(checks.local_access, subject, status)
    if status is Health.WARN:
        assert found.seen.endswith("can be reached by redis-worker@ai.service")
        assert "AUTH=required" in found.fix
    for code in (401, 403):
        fetch = answering(others=Response(code, b"{}"))
        subject = make_machine(tmp_path, run=systemd.run, fetch=fetch)
        expect(checks.local_access, subject, Health.OK, seen="requires API keys")


def test_other_users_reach_a_keyless_gateway(tmp_path: Path) -> None:
    expect(checks.local_access, machine_with(tmp_path), Health.OK)
    write(tmp_path, "/etc/passwd", PASSWD)
    found = expect(checks.local_access, machine_with(tmp_path), Health.WARN)
    assert found.seen.endswith("can be reached by the user mina")
    own = make_machine(tmp_path, fetch=answering(), environ={"SUDO_UID": "1000"})
    expect(checks.local_access, own, Health.OK)
    remote = make_machine(tmp_path, fetch=answering(), url="http://host.lan:8080")
    expect_skipped(checks.local_access, remote, "another machine")


def test_gateway_version(tmp_path: Path) -> None:
    for version, status in {"0.1.0": Health.OK, "9.9": Health.NOTE}.items():
        body = json.dumps({"info": {"version": version}}).encode()
        fetch = answering(openapi_json=Response(200, body))
        expect(checks.version, make_machine(tmp_path, version="0.1.0", fetch=fetch), status)
    for answer, reason in {
        Response(401, b"{}"): "SLUICE_API_KEY",
        Response(200, b"{}"): "does not report",
    }.items():
        expect_skipped(checks.version, machine_with(tmp_path, openapi_json=answer), reason)


def test_api_key_is_sent_only_where_needed(tmp_path: Path) -> None:
    """The check whether keys are required is made without a key."""
    sent = {}

    def fetch(url: str, timeout_s: float, headers: Mapping[str, str]) -> Response:
        sent[url.rsplit("/", 1)[1]] = headers.get("Authorization")
        return Response(200, b'{"ok":true,"info":{"version":"0.1.0"}}')

    subject = make_machine(tmp_path, fetch=fetch, environ={"SLUICE_API_KEY": "k"})
    for check in checks.CHECKS:
        finding_of(check, subject)
    assert sent.pop("openapi.json") == "Bearer k"
    assert set(sent.values()) == {None}


def test_real_listeners(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        [found] = [each for each in listeners(make_machine(Path("/"))) if each.port == port]
        assert str(found.ip) == "127.0.0.1"
    assert listeners(make_machine(tmp_path)) == []


def test_redirects_are_not_followed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(
                    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n"
                    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
                )

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert fetch_url(f"http://127.0.0.1:{port}/healthz", 5.0, {}).status == 302
        finally:
            thread.join(10)

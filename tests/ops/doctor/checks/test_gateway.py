"""The gateway, as a web server made of words answers."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.error
from collections.abc import Mapping
from pathlib import Path

import pytest

from ops.doctor.checks import gateway as checks
from ops.doctor.checks.gateway import listeners
from ops.doctor.finding import CheckSkipped, Health
from ops.http import Response, fetch_url
from tests.ops.doctor.machines import answering, finding_of, make_machine, write

YES = Response(200, b'{"ok":true}')
HEAD = "  sl  local_address rem_address   st tx_queue\n"
LOOPBACK = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n"
EVERYWHERE = "   1: 00000000:1F90 00000000:0000 0A 00000000:00000000\n"
CONNECTED = "   2: 00000000:1F90 0100007F:0001 01 00000000:00000000\n"
SIX = "   0: 00000000000000000000000000000000:1F90 00000000:0000 0A 0:0\n"
SIX_LOOPBACK = "   0: 00000000000000000000000001000000:1F90 00000000:0000 0A 0:0\n"
SIX_MAPPED = "   0: 0000000000000000FFFF00000100007F:1F90 00000000:0000 0A 0:0\n"


def test_it_answers(tmp_path: Path) -> None:
    subject = make_machine(tmp_path, fetch=answering(healthz=YES, readyz=YES))
    assert finding_of(checks.answers, subject).status is Health.OK
    assert finding_of(checks.ready, subject).status is Health.OK


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (ConnectionRefusedError(), "nobody listens"),
        (urllib.error.URLError(ConnectionRefusedError()), "nobody listens"),
        (TimeoutError("timed out"), "says nothing"),
        (urllib.error.URLError(socket.gaierror(-2, "Name or service not known")), "not known"),
        (http.client.BadStatusLine("SSH-2.0"), "does not speak HTTP"),
        (OSError("no route"), "no route"),
    ],
)
def test_it_does_not_answer(tmp_path: Path, error: Exception, word: str) -> None:
    def fetch(url: str, timeout_s: float, headers: Mapping[str, str]) -> Response:
        raise error

    subject = make_machine(tmp_path, fetch=fetch)
    found = finding_of(checks.answers, subject)
    assert found.status is Health.FAIL
    assert word in found.cause
    for check in (checks.ready, checks.exposure, checks.version):
        with pytest.raises(CheckSkipped):
            check.run(subject)


@pytest.mark.parametrize(
    "answer",
    [Response(200, b"<html>"), Response(404, b"{}"), Response(200, b"[1]"), Response(302, b"")],
)
def test_somebody_else_has_the_port(tmp_path: Path, answer: Response) -> None:
    found = finding_of(checks.answers, make_machine(tmp_path, fetch=answering(healthz=answer)))
    assert found.status is Health.FAIL
    assert "ss -ltnp 'sport = :8080'" in found.fix


def test_it_cannot_serve(tmp_path: Path) -> None:
    answer = Response(503, json.dumps({"detail": "Redis is away"}).encode())
    found = finding_of(checks.ready, make_machine(tmp_path, fetch=answering(readyz=answer)))
    assert (found.status, found.seen) == (Health.FAIL, "not ready: Redis is away")
    broken = finding_of(
        checks.ready, make_machine(tmp_path, fetch=answering(readyz=Response(500, b"")))
    )
    assert broken.seen == "not ready: HTTP 500"


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
def test_who_can_reach_it(tmp_path: Path, four: str, six: str, code: int, status: Health) -> None:
    write(tmp_path, "/proc/net/tcp", HEAD + four)
    write(tmp_path, "/proc/net/tcp6", HEAD + six)
    subject = make_machine(tmp_path, fetch=answering(others=Response(code, b"{}")))
    assert finding_of(checks.exposure, subject).status is status


def test_a_gateway_elsewhere_is_beyond_loopback(tmp_path: Path) -> None:
    for code, status in {404: Health.FAIL, 401: Health.OK}.items():
        fetch = answering(others=Response(code, b"{}"))
        subject = make_machine(tmp_path, fetch=fetch, url="http://box.lan:8080")
        assert finding_of(checks.exposure, subject).status is status


def test_versions(tmp_path: Path) -> None:
    for said, status in {"0.1.0": Health.OK, "9.9": Health.NOTE}.items():
        body = json.dumps({"info": {"version": said}}).encode()
        subject = make_machine(
            tmp_path, version="0.1.0", fetch=answering(openapi_json=Response(200, body))
        )
        assert finding_of(checks.version, subject).status is status
    for answer, word in {
        Response(401, b"{}"): "SLUICE_API_KEY",
        Response(200, b"{}"): "not tell",
    }.items():
        with pytest.raises(CheckSkipped, match=word):
            checks.version.run(make_machine(tmp_path, fetch=answering(openapi_json=answer)))


def test_a_key_is_shown_only_where_it_is_needed(tmp_path: Path) -> None:
    """Whether keys are asked for is found out without one."""
    shown = {}

    def fetch(url: str, timeout_s: float, headers: Mapping[str, str]) -> Response:
        shown[url.rsplit("/", 1)[1]] = headers.get("Authorization")
        return Response(200, b'{"ok":true,"info":{"version":"0.1.0"}}')

    subject = make_machine(tmp_path, fetch=fetch, environ={"SLUICE_API_KEY": "k"})
    for check in checks.CHECKS:
        finding_of(check, subject)
    assert shown.pop("openapi.json") == "Bearer k"
    assert set(shown.values()) == {None}


def test_real_listeners(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        [found] = [each for each in listeners(make_machine(Path("/"))) if each.port == port]
        assert str(found.ip) == "127.0.0.1"
    assert listeners(make_machine(tmp_path)) == []


def test_no_redirect_is_followed() -> None:
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

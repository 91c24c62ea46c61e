"""sd_notify: the messages to systemd, and no effect without systemd."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.process import systemd as notify


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["path", "abstract"])
def systemd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@sluice-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0"))
        listening.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listening


def test_a_message_arrives_completely(systemd: socket.socket) -> None:
    assert notify.enabled()
    assert notify.send(notify.READY, notify.status("3 running,\n 12 waiting \ud800"))
    assert systemd.recv(4096) == b"READY=1\nSTATUS=3 running, 12 waiting ?"


def test_the_assignments_of_systemd() -> None:
    assert (notify.READY, notify.STOPPING, notify.WATCHDOG) == (
        "READY=1",
        "STOPPING=1",
        "WATCHDOG=1",
    )
    assert notify.extend_timeout(2.5) == "EXTEND_TIMEOUT_USEC=2500000"


def test_without_systemd_nothing_happens() -> None:
    assert not notify.enabled()
    assert not notify.send(notify.READY)


@pytest.mark.parametrize("address", ["/nonexistent/notify", "relative", "/" + "x" * 200, "@"])
def test_a_missing_socket_is_not_an_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify.send(notify.READY)


def test_a_systemd_that_does_not_read_does_not_block(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "SEND_TIMEOUT_S", 0.01)
    assert any(not notify.send(notify.WATCHDOG) for _ in range(10_000))


@pytest.mark.parametrize(
    ("environment", "period_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "me"}, None),
    ],
)
def test_the_watchdog_period(
    environment: dict[str, str], period_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert notify.watchdog_s() == period_s

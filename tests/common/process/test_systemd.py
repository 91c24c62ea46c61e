"""Notifications to systemd, its watchdog, and the limit of open files."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.common.process import systemd, usage
from sluice.common.process.systemd import Watchdog
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["path", "abstract"])
def listener(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@sluice-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0"))
        listening.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listening


def test_a_message_arrives_completely(listener: socket.socket) -> None:
    assert systemd.enabled()
    more = systemd.STOPPING, systemd.WATCHDOG, systemd.extend_timeout(2.5)
    assert systemd.send(systemd.READY, systemd.status("3 running,\n 12 waiting \ud800"), *more)
    assert listener.recv(4096).decode().splitlines() == [
        *("READY=1", "STATUS=3 running, 12 waiting ?"),
        *("STOPPING=1", "WATCHDOG=1", "EXTEND_TIMEOUT_USEC=2500000"),
    ]


@pytest.mark.parametrize("address", ["/nonexistent/notify", "relative", "/" + "x" * 200, "@"])
def test_a_missing_socket_is_not_an_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not systemd.send(systemd.READY)


def test_a_systemd_that_does_not_read_does_not_block(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "SEND_TIMEOUT_S", 0.01)
    assert any(not systemd.send(systemd.WATCHDOG) for _ in range(10_000))


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
    assert systemd.watchdog_s() == period_s


# -- The watchdog is fed only while the process is healthy; the status text describes it ----------


PERIOD_S = 30.0


class WatchdogHarness:
    """A process that can be made unhealthy, an adjustable clock, and received notifications."""

    def __init__(self, period_s: float | None = PERIOD_S) -> None:
        self.now = 1000.0
        self.redis_answers, self.lease_trouble = True, ""
        self.messages: list[tuple[str, ...]] = []
        self.watchdog = Watchdog(
            lambda: "3 running",
            self.look,
            lambda: self.lease_trouble,
            period_s=period_s,
            clock=lambda: self.now,
            send=lambda *assignments: self.messages.append(assignments),
        )

    async def look(self) -> str:
        if not self.redis_answers:
            raise ConnectionError("away")
        return "12 waiting"

    async def after(
        self, seconds: float, redis: bool = True, trouble: str = "", **how: Any
    ) -> bool:
        """Advance the time and check; returns whether the watchdog was fed."""
        self.now += seconds
        self.redis_answers, self.lease_trouble = redis, trouble
        fed = await self.watchdog.run_once(**how)
        assert (systemd.WATCHDOG in self.messages[-1]) == fed
        return fed


async def test_a_healthy_process_feeds_and_reports_its_status() -> None:
    harness = WatchdogHarness()
    for _ in range(3):
        assert await harness.after(10)
    assert harness.messages == [("STATUS=3 running, 12 waiting", "WATCHDOG=1")] * 3
    # A late event loop does not feed until it has recovered.
    assert await harness.after(10, late_s=4.9)
    assert not await harness.after(10, late_s=5.1)
    assert await harness.after(2, late_s=0.0)


async def test_redis_must_have_answered_within_the_period() -> None:
    harness = WatchdogHarness()
    assert await harness.after(10)
    assert await harness.after(10, redis=False)
    assert harness.messages[-1][0] == "STATUS=3 running, Redis does not answer"
    assert await harness.after(20, redis=False)  # thirty seconds: not more than the period
    assert not await harness.after(1, redis=False)
    assert await harness.after(1)
    # If it never answered, another restart every minute would not help.
    harness = WatchdogHarness()
    for _ in range(100):
        assert await harness.after(10, redis=False)
    assert await harness.after(10)
    assert not await harness.after(PERIOD_S + 1, redis=False)


async def test_a_redis_that_hangs_does_not_block_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = WatchdogHarness(period_s=0.06)

    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    assert await harness.after(0)
    harness.watchdog._look = hang
    assert not await harness.after(1)


async def test_lease_trouble_stops_feeding_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    harness = WatchdogHarness()
    caplog.set_level(logging.INFO)
    for trouble in ("", "no lease", "no lease", "no lease", "", ""):
        assert await harness.after(10, trouble=trouble) == (trouble == "")
    assert [record.getMessage() for record in caplog.records] == [
        "the watchdog is not fed: no lease",
        "recovered: the watchdog is fed again",
    ]


async def test_without_a_watchdog_the_status_is_still_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    harness = WatchdogHarness(period_s=None)
    assert not await harness.after(10)
    assert harness.messages == [("STATUS=3 running, 12 waiting",)]


async def test_a_stopping_process_asks_for_time_and_keeps_feeding() -> None:
    harness = WatchdogHarness()
    harness.watchdog.notify_stopping()
    assert await harness.after(10)
    assert harness.messages == [
        ("STOPPING=1", "STATUS=stopping: 3 running", "EXTEND_TIMEOUT_USEC=20000000"),
        ("STATUS=stopping: 3 running, 12 waiting", "EXTEND_TIMEOUT_USEC=20000000", "WATCHDOG=1"),
    ]


async def test_ready_is_sent_once_without_waiting_for_redis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent")
    harness = WatchdogHarness(period_s=0.03)
    running = asyncio.create_task(harness.watchdog.run())
    await eventually(lambda: len(harness.messages) > 2)
    running.cancel()
    assert [systemd.READY in message for message in harness.messages][:3] == [True, False, False]
    harness = WatchdogHarness()
    harness.redis_answers = False
    running = asyncio.create_task(harness.watchdog.run())
    await eventually(lambda: harness.messages)
    running.cancel()
    assert harness.messages == [
        ("STATUS=3 running, Redis does not answer", "READY=1", "WATCHDOG=1")
    ]


async def test_without_systemd_nothing_happens() -> None:
    assert not systemd.enabled()
    assert not systemd.send(systemd.READY)
    harness = WatchdogHarness()
    await harness.watchdog.run()
    assert harness.messages == []


async def test_stopping_during_a_failing_check_logs_nothing() -> None:
    begun, complaints = asyncio.Event(), []

    async def look() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionError("Redis has just hung up") from None
        return ""

    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    watching = asyncio.create_task(
        Watchdog(lambda: "", look, period_s=9.0, send=lambda *_: None).run_once()
    )
    await begun.wait()
    watching.cancel()
    await asyncio.wait({watching})
    watching.cancelled() or watching.exception()
    del watching
    gc.collect()
    assert complaints == []


# -- raise_file_limit raises the soft limit of open files -----------------------------------------


@pytest.mark.parametrize(
    ("limits", "wanted", "allowed", "becomes"),
    [
        ((1024, 4096), 900, 1024, None),
        ((1024, 4096), 2000, 2000, (2000, 4096)),
        ((1024, 4096), 9000, 4096, (4096, 4096)),
        ((1024, resource.RLIM_INFINITY), 9000, 9000, (9000, 9000)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 9000, 9000, None),
    ],
)
def test_the_soft_limit_is_raised_up_to_the_hard_limit(
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
    wanted: int,
    allowed: int,
    becomes: tuple[int, int] | None,
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda what, pair: made.append(pair))
    assert usage.raise_file_limit(wanted) == allowed
    assert made == ([] if becomes is None else [becomes])

"""The watchdog is fed only while the process is healthy; the status text describes it."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

from common.process import systemd
from common.process.systemd import Watchdog
from tests.conftest import eventually

PERIOD_S = 30.0


class Scene:
    """A process that can be made unhealthy, an adjustable clock, and received notifications."""

    def __init__(self, period_s: float | None = PERIOD_S) -> None:
        self.now = 1000.0
        self.redis_answers = True
        self.lease_trouble = ""
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

    async def after(self, seconds: float, **how: Any) -> bool:
        """Advance the time and check; returns whether the watchdog was fed."""
        self.now += seconds
        fed = await self.watchdog.run_once(**how)
        assert (systemd.WATCHDOG in self.messages[-1]) == fed
        return fed


async def test_a_healthy_process_feeds_and_reports_its_status() -> None:
    scene = Scene()
    for _ in range(3):
        assert await scene.after(10)
    assert scene.messages == [("STATUS=3 running, 12 waiting", "WATCHDOG=1")] * 3


async def test_a_late_event_loop_does_not_feed_until_it_recovers() -> None:
    scene = Scene()
    assert await scene.after(10, late_s=4.9)
    assert not await scene.after(10, late_s=5.1)
    assert await scene.after(2, late_s=0.0)


async def test_redis_must_have_answered_within_the_period() -> None:
    scene = Scene()
    assert await scene.after(10)
    scene.redis_answers = False
    assert await scene.after(10)
    assert scene.messages[-1][0] == "STATUS=3 running, Redis does not answer"
    assert await scene.after(20)  # thirty seconds: not more than the period
    assert not await scene.after(1)
    scene.redis_answers = True
    assert await scene.after(1)


async def test_a_redis_that_never_answered_is_not_required() -> None:
    """The process was just restarted; another restart every minute would not help."""
    scene = Scene()
    scene.redis_answers = False
    for _ in range(100):
        assert await scene.after(10)
    scene.redis_answers = True
    assert await scene.after(10)
    scene.redis_answers = False
    assert not await scene.after(PERIOD_S + 1)


async def test_a_redis_that_hangs_does_not_block_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(period_s=0.06)

    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    assert await scene.after(0)
    scene.watchdog._look = hang
    assert not await scene.after(1)


async def test_trouble_with_leases_stops_feeding() -> None:
    scene = Scene()
    scene.lease_trouble = "leases are not renewed"
    assert not await scene.after(10)
    scene.lease_trouble = ""
    assert await scene.after(10)


async def test_the_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    caplog.set_level(logging.INFO)
    for lease_trouble in ("", "no lease", "no lease", "no lease", "", ""):
        scene.lease_trouble = lease_trouble
        await scene.after(10)
    assert [record.getMessage() for record in caplog.records] == [
        "the watchdog is not fed: no lease",
        "recovered: the watchdog is fed again",
    ]


async def test_without_a_watchdog_the_status_is_still_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    scene = Scene(period_s=None)
    assert not await scene.after(10)
    assert scene.messages == [("STATUS=3 running, 12 waiting",)]


async def test_a_stopping_process_asks_for_time_and_keeps_feeding() -> None:
    scene = Scene()
    scene.watchdog.notify_stopping()
    assert await scene.after(10)
    assert scene.messages == [
        ("STOPPING=1", "STATUS=stopping: 3 running", "EXTEND_TIMEOUT_USEC=20000000"),
        ("STATUS=stopping: 3 running, 12 waiting", "EXTEND_TIMEOUT_USEC=20000000", "WATCHDOG=1"),
    ]


async def test_ready_is_sent_first_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent")
    scene = Scene(period_s=0.03)
    running = asyncio.create_task(scene.watchdog.run())
    await eventually(lambda: len(scene.messages) > 2)
    running.cancel()
    assert [systemd.READY in message for message in scene.messages][:3] == [True, False, False]


async def test_ready_does_not_wait_for_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent")
    scene = Scene()
    scene.redis_answers = False
    running = asyncio.create_task(scene.watchdog.run())
    await eventually(lambda: scene.messages)
    running.cancel()
    assert scene.messages == [
        ("STATUS=3 running, Redis does not answer", "READY=1", "WATCHDOG=1"),
    ]


async def test_without_systemd_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    scene = Scene()
    await scene.watchdog.run()
    assert scene.messages == []


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

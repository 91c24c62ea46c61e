"""The chaos harness: a short run with real faults, and tests that its checks find violations."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chaos import handler_runs, oracle
from chaos.cluster import Kill
from chaos.history import Event, History, Leftovers, Record
from chaos.load import Posted
from chaos.orders import Kind, Order, make_orders
from chaos.plan import FaultKind, On, kinds_on, make_plan
from chaos.proxy import Proxy
from chaos.run_log import HandlerRun, RunLog, read_all
from chaos.watch import Watched
from tests.support.servers import REAL, missing, server_binary

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 240.0


# -- real runs -----------------------------------------------------------------------------


def start_chaos(*options: str) -> subprocess.Popen[str]:
    if not any(server_binary(name) for name in REAL):
        missing("no redis-server is installed")
    return subprocess.Popen(
        [sys.executable, "-m", "chaos", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.process
@pytest.mark.slow("injects faults for seconds")
def test_a_short_run_has_no_violations(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run = start_chaos("--seed", "11", "--minutes", "0.12", "--jobs", "50", "--json", str(report))
    output, _ = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 0, output
    assert "no violations" in output
    saved = json.loads(report.read_text())
    assert saved["violations"] == []
    assert saved["summary"]["accepted"] == "50"
    assert len(saved["timeline"]) == len(make_plan(11, 7.2))


@pytest.mark.process
@pytest.mark.slow("starts six processes")
def test_an_interrupted_run_leaves_nothing_running() -> None:
    run = start_chaos("--seed", "11", "--minutes", "1", "--jobs", "50")
    assert run.stdout is not None
    assert run.stdout.readline().startswith("seed 11")
    deadline = time.monotonic() + TIMEOUT_S
    while len(children := _children(run)) < 6:  # Redis, two gateways, three workers
        assert time.monotonic() < deadline
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 130
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []


def _children(run: subprocess.Popen[str]) -> list[int]:
    listing = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    assert run.poll() is None
    if not listing.exists():
        pytest.skip("this system does not list child processes")
    return [int(child) for child in listing.read_text().split()]


# -- the oracle ----------------------------------------------------------------------------

ECHO = Order(0, 0.0, Kind.ECHO, "chat", {"events": 2})
FIELDS = {
    "job_id": "j", "task": "chat", "payload": "{}", "status": "done", "created_ts": "1",
    "updated_ts": "2", "ttl_s": "600", "result": "1", "error": "",
}  # fmt: skip


def events_of(*events: tuple[str, object]) -> tuple[Event, ...]:
    return tuple(
        Event(f"{100 + at}-0", kind, 100 + at, data) for at, (kind, data) in enumerate(events)
    )


def progress(attempt: int, number: int) -> tuple[str, object]:
    return "progress", {"attempt": attempt, "number": number}


def running(attempt: int) -> tuple[str, object]:
    return "running", {"attempt": attempt}


QUEUED, DONE = ("queued", {}), ("done", {"ms": 1})
VALID = events_of(QUEUED, running(1), progress(1, 1), progress(1, 2), DONE)


def history(
    events: tuple[Event, ...] = VALID, order: Order = ECHO, status: str = "done", **posted: object
) -> History:
    post = Posted(order, first_sent_ms=50, job_ids=["j"])
    for name, value in posted.items():
        setattr(post, name, value)
    return History([post], {"j": Record("j", {**FIELDS, "status": status}, events)})


def rules(found: History) -> set[str]:
    return {violation.rule for violation in oracle.check(found)}


def test_a_valid_history_has_no_violations() -> None:
    assert oracle.check(history()) == []
    crashed = events_of(
        QUEUED, running(1), progress(1, 1), running(2), progress(2, 1), progress(2, 2), DONE
    )
    assert oracle.check(history(crashed)) == []


TERMINAL_EVENT = "one terminal event, last, equal to the status"


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ((*VALID, Event("200-0", "done", 200, {})), TERMINAL_EVENT),
        ((*VALID, Event("200-0", "error", 200, {})), TERMINAL_EVENT),
        (VALID[:-1], TERMINAL_EVENT),
        ((*VALID, Event("200-0", "progress", 200, {"attempt": 1, "number": 3})), TERMINAL_EVENT),
        ((*VALID[:-1], Event("200-0", "error", 200, {})), TERMINAL_EVENT),
        (VALID[1:], "queued first"),
        ((VALID[0], *VALID), "queued first"),
        (events_of(QUEUED, running(1), running(1), progress(1, 1), progress(1, 2), DONE),
         "attempts count up"),
        (events_of(QUEUED, running(2), progress(2, 1), progress(2, 2), DONE), "attempts count up"),
        (events_of(QUEUED, running(1), running(2), progress(1, 1), progress(2, 1), progress(2, 2),
              DONE), "fenced"),
        (events_of(QUEUED, running(1), ("retry", {"attempt": 1, "delay_ms": 0}), progress(1, 1),
              running(2), progress(2, 1), progress(2, 2), DONE), "fenced"),
        (events_of(QUEUED, running(1), progress(1, 1), progress(1, 1), DONE), "events complete"),
        (events_of(QUEUED, running(1), progress(1, 2), DONE), "events complete"),
        (events_of(QUEUED, running(1), progress(1, 1), DONE), "events complete"),
        (events_of(QUEUED, running(1), ("retry", {"attempt": 1, "delay_ms": 900}), running(2),
              progress(2, 1), progress(2, 2), DONE), "not early"),
        (events_of(QUEUED, ("scheduled", {"run_at_ms": 999}), running(1), progress(1, 1),
              progress(1, 2), DONE), "not early"),
        (tuple(replace(event, ts=1000 - at * 50) for at, event in enumerate(VALID)),
         "times in order"),
    ],
)  # fmt: skip
def test_an_invalid_history_is_found(events: tuple[Event, ...], rule: str) -> None:
    assert rule in rules(history(events))


def test_lost_and_stuck_jobs_are_found() -> None:
    lost = history()
    lost.records["j"] = Record("j", {}, ())
    assert rules(lost) == {"lost"}
    assert rules(history(VALID[:2], status="running")) == {"stuck"}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda found: found.records["j"].fields.pop("error"), "nine fields"),
        (lambda found: found.records["j"].fields.update(more="x"), "nine fields"),
        (lambda found: found.posted[0].job_ids.append("other"), "one job a key"),
        (lambda found: found.posted[0].job_ids.clear(), "accepted"),
        (lambda found: found.posted[0].faults.append("500"), "answer"),
        (lambda found: found.complaints.append("it ended by itself"), "process"),
        (lambda found: setattr(found.posted[0], "cancel_answer", "canceled"), "canceled as asked"),
    ],
)
def test_a_change_that_breaks_a_rule_is_found(
    change: Callable[[History], object], rule: str
) -> None:
    found = history()
    change(found)
    assert rule in rules(found)


def test_an_unexpected_outcome_is_found() -> None:
    doomed = replace(ECHO, may_end=frozenset({"error"}), errors=frozenset({"boom"}))
    assert "ends as ordered" in rules(history(order=doomed))
    events = (*VALID[:-1], Event("200-0", "error", 200, {"kind": "bang"}))
    failed = history(events, doomed, "error")
    failed.records["j"].fields["error"] = '{"kind":"bang"}'
    assert rules(failed) == {"ends as ordered"}
    failed.records["j"].fields["error"] = '{"kind":"boom"}'
    assert rules(failed) == set()


def test_a_cancel_without_a_request_is_found() -> None:
    order = replace(ECHO, may_end=frozenset({"done", "canceled"}))
    events = (*VALID[:-1], Event("200-0", "canceled", 200, {}))
    assert rules(history(events, order, "canceled")) == {"canceled as asked"}
    assert rules(history(events, order, "canceled", cancel_sent_ms=60)) == set()


def test_released_attempts_do_not_count_against_the_limit() -> None:
    order = replace(ECHO, options={"max_attempts": 1})
    events = events_of(QUEUED, running(1), running(2), progress(2, 1), progress(2, 2), DONE)
    assert rules(history(events, order)) == {"attempts count up"}
    events = events_of(
        QUEUED, running(1), ("released", {"attempt": 1}), running(2), progress(2, 1),
        progress(2, 2), DONE,
    )  # fmt: skip
    assert rules(history(events, order)) == set()


def test_an_early_start_is_found() -> None:
    order = replace(ECHO, options={"delay_s": 0.04})
    assert rules(history(order=order)) == set()
    order = replace(ECHO, options={"delay_s": 0.09})
    assert rules(history(order=order)) == {"not early"}


@pytest.mark.parametrize(
    "left",
    [
        Leftovers(pending=1),
        Leftovers(unread=1),
        Leftovers(scheduled=1),
        Leftovers(without_ttl=("job:j",)),
        Leftovers(leases=("j",)),
        Leftovers(unknown_jobs=("k",)),
        Leftovers(dead_letters_by_job=Counter({"j": 2})),
    ],
)
def test_leftovers_are_found(left: Leftovers) -> None:
    found = history()
    found.leftovers = left
    assert len(oracle.check(found)) == 1


IDS = [event.id for event in VALID]


@pytest.mark.parametrize(
    "seen",
    [
        Watched("j", IDS[:-1], ended=True),
        Watched("j", IDS[1:], ended=True),
        Watched("j", [*IDS, IDS[-1]], ended=True),
        Watched("j", [IDS[0], IDS[2], IDS[1], *IDS[3:]], ended=True),
        Watched("j", [], ended=True),
        Watched("j", IDS),
        Watched("j", IDS, ended=True, faults=["the stream sent gap"]),
    ],
    ids=["last missing", "first missing", "doubled", "out of order", "nothing", "no end", "gap"],
)
def test_an_incomplete_stream_is_found(seen: Watched) -> None:
    found = history()
    found.watched = [Watched("j", IDS, ended=True)]
    assert rules(found) == set()
    found.watched = [seen]
    assert rules(found) == {"watched"}


# -- run logs ------------------------------------------------------------------------------


def handler_run(
    job_id: str, started: int, ended: int | None, task: str = "chat", attempt: int = 1
) -> HandlerRun:
    return HandlerRun("worker-0.1", job_id, attempt, task, started, ended)


def test_too_many_concurrent_runs_are_found() -> None:
    ran = [handler_run("a", 0, 10), handler_run("b", 5, 15), handler_run("c", 10, None)]
    assert handler_runs.max_concurrent(ran) == 2
    assert list(handler_runs.check(ran, {}, 2, {})) == []
    assert [found.rule for found in handler_runs.check(ran, {}, 1, {})] == ["slots"]
    assert [found.rule for found in handler_runs.check(ran, {}, 2, {"chat": 1})] == ["slots"]


def test_a_thread_counts_only_while_it_occupied_a_slot() -> None:
    ran = [handler_run("j", 0, 10, "code"), handler_run("k", 5, 15)]
    finished = Record("j", FIELDS, VALID)
    assert len(list(handler_runs.check(ran, {"j": finished}, 1, {}))) == 1
    taken_over = Record("j", FIELDS, events_of(QUEUED, running(1), running(2), DONE))
    timed_out = Record("j", FIELDS, events_of(QUEUED, running(1), ("error", {"kind": "timeout"})))
    for record in (taken_over, timed_out):
        assert list(handler_runs.check(ran, {"j": record}, 1, {})) == []


def test_recovery_is_from_the_kill_to_the_next_attempt() -> None:
    events = (
        Event("1-0", "running", 100, {"attempt": 1}),
        Event("2-0", "running", 2600, {"attempt": 2}),
    )
    kill = Kill("worker-0.1", at_ms=1100)
    ran = [handler_run("j", 0, None), handler_run("other", 0, 5)]
    [recovery] = handler_runs.recoveries([kill], ran, {"j": Record("j", FIELDS, events)})
    assert (recovery.job_id, recovery.seconds) == ("j", 1.5)


def test_a_run_log_is_read_as_written(tmp_path: Path) -> None:
    run_log = RunLog(str(tmp_path), "worker-0")
    with run_log.run("a", 1, "chat"):
        unended = run_log.run("b", 2, "code")
        unended.__enter__()
    first, second = read_all(tmp_path)
    assert (first.job_id, first.attempt, first.task) == ("a", 1, "chat")
    assert first.ended_ns is not None
    assert (second.job_id, second.ended_ns) == ("b", None)


def test_an_attempt_that_ran_twice_is_two_runs(tmp_path: Path) -> None:
    """After a failover that lost the start of the first run."""
    run_log = RunLog(str(tmp_path), "worker-0")
    first, second, third = (run_log.run("a", 1, "chat") for _ in range(3))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    third.__enter__()
    read = read_all(tmp_path)
    started = [found.started_ns for found in read]
    assert started == sorted(started)
    assert [found.ended_ns is None for found in read] == [False, False, True]
    assert handler_runs.max_concurrent(read) == 2


# -- plans, orders, the proxy --------------------------------------------------------------


def test_a_plan_depends_on_its_seed_alone() -> None:
    assert make_plan(5, 120) == make_plan(5, 120)
    assert make_plan(5, 120) != make_plan(6, 120)
    short = make_plan(5, 20)
    assert make_plan(5, 120)[: len(short)] == short
    assert {fault.kind for fault in make_plan(5, 120)} == kinds_on(On.ONE)
    assert [fault.kind for fault in make_plan(5, 120) if fault.calm] == [FaultKind.KILL_WORKER] * 2
    for on in On:
        assert {fault.kind for fault in make_plan(5, 120, on)} == kinds_on(on)
    assert make_orders(5, 50, 10) == make_orders(5, 50, 10)


@pytest.fixture
async def echo() -> int:
    """Port of a server that echoes all data."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    return port


async def test_the_proxy_forwards_loses_and_drops(echo: int) -> None:
    proxy = Proxy(echo)
    await proxy.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"EVAL 1")
        assert await reader.read(100) == b"EVAL 1"
        proxy.lose(1)
        writer.write(b"PING")  # changes nothing, so its reply is not dropped
        assert await reader.read(100) == b"PING"
        writer.write(b"EVAL 2")
        with pytest.raises((ConnectionError, EOFError)):
            await reader.readexactly(1)
        assert proxy.lost_replies == 1

        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        proxy.drop(requests_pass=False)
        writer.write(b"x")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        proxy.stop_dropping()
        writer.write(b"y")  # a half-open connection stays half-open
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"z")
        assert await reader.read(1) == b"z"
        proxy.cut()
        with pytest.raises((ConnectionError, EOFError)):
            await reader.readexactly(1)
    finally:
        await proxy.close()

"""The chaos harness: a small run among real faults, and proof that its oracle can say no."""

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

from chaos import oracle, stints
from chaos.cluster import Kill
from chaos.diary import Diary, Stint, read_all
from chaos.history import Event, History, Leftovers, Record
from chaos.load import Posted
from chaos.orders import Kind, Order, make_orders
from chaos.plan import FaultKind, On, kinds_on, make_plan
from chaos.proxy import Proxy
from chaos.watch import Watched
from tests.support.backends import REAL, missing, server_binary

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0


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
def test_a_small_run_breaks_no_promise(tmp_path: Path) -> None:
    story = tmp_path / "story.json"
    run = start_chaos("--seed", "11", "--minutes", "0.12", "--jobs", "50", "--json", str(story))
    said, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, said
    assert "no promise was broken" in said
    told = json.loads(story.read_text())
    assert told["violations"] == []
    assert told["summary"]["accepted"] == "50"
    assert len(told["timeline"]) == len(make_plan(11, 7.2))


@pytest.mark.process
def test_an_interrupted_run_leaves_nothing_running() -> None:
    run = start_chaos("--seed", "11", "--minutes", "1", "--jobs", "50")
    assert run.stdout is not None
    assert run.stdout.readline().startswith("seed 11")
    deadline = time.monotonic() + PATIENCE_S
    while len(children := _children(run)) < 6:  # Redis, two gateways, three workers
        assert time.monotonic() < deadline
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 130
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []


def _children(run: subprocess.Popen[str]) -> list[int]:
    listing = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    assert run.poll() is None
    if not listing.exists():
        pytest.skip("this system does not tell who started whom")
    return [int(child) for child in listing.read_text().split()]


# -- the oracle ----------------------------------------------------------------------------

ECHO = Order(0, 0.0, Kind.ECHO, "chat", {"events": 2})
FIELDS = {
    "job_id": "j", "task": "chat", "payload": "{}", "status": "done", "created_ts": "1",
    "updated_ts": "2", "ttl_s": "600", "result": "1", "error": "",
}  # fmt: skip


def told(*events: tuple[str, object]) -> tuple[Event, ...]:
    return tuple(
        Event(f"{100 + at}-0", kind, 100 + at, data) for at, (kind, data) in enumerate(events)
    )


def progress(attempt: int, number: int) -> tuple[str, object]:
    return "progress", {"attempt": attempt, "number": number}


def running(attempt: int) -> tuple[str, object]:
    return "running", {"attempt": attempt}


QUEUED, DONE = ("queued", {}), ("done", {"ms": 1})
STORY = told(QUEUED, running(1), progress(1, 1), progress(1, 2), DONE)


def history(
    events: tuple[Event, ...] = STORY, order: Order = ECHO, status: str = "done", **posted: object
) -> History:
    post = Posted(order, first_sent_ms=50, job_ids=["j"])
    for name, value in posted.items():
        setattr(post, name, value)
    return History([post], {"j": Record("j", {**FIELDS, "status": status}, events)})


def rules(found: History) -> set[str]:
    return {violation.rule for violation in oracle.check(found)}


def test_a_good_story_is_believed() -> None:
    assert oracle.check(history()) == []


def test_a_good_story_with_a_crash_is_believed() -> None:
    events = told(
        QUEUED, running(1), progress(1, 1), running(2), progress(2, 1), progress(2, 2), DONE
    )
    assert oracle.check(history(events)) == []


TERMINAL_EVENT = "one terminal event, last, equal to the status"


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ((*STORY, Event("200-0", "done", 200, {})), TERMINAL_EVENT),
        ((*STORY, Event("200-0", "error", 200, {})), TERMINAL_EVENT),
        (STORY[:-1], TERMINAL_EVENT),
        ((*STORY, Event("200-0", "progress", 200, {"attempt": 1, "number": 3})), TERMINAL_EVENT),
        ((*STORY[:-1], Event("200-0", "error", 200, {})), TERMINAL_EVENT),
        (STORY[1:], "queued first"),
        ((STORY[0], *STORY), "queued first"),
        (told(QUEUED, running(1), running(1), progress(1, 1), progress(1, 2), DONE),
         "attempts count up"),
        (told(QUEUED, running(2), progress(2, 1), progress(2, 2), DONE), "attempts count up"),
        (told(QUEUED, running(1), running(2), progress(1, 1), progress(2, 1), progress(2, 2),
              DONE), "fenced"),
        (told(QUEUED, running(1), ("retry", {"attempt": 1, "delay_ms": 0}), progress(1, 1),
              running(2), progress(2, 1), progress(2, 2), DONE), "fenced"),
        (told(QUEUED, running(1), progress(1, 1), progress(1, 1), DONE), "events complete"),
        (told(QUEUED, running(1), progress(1, 2), DONE), "events complete"),
        (told(QUEUED, running(1), progress(1, 1), DONE), "events complete"),
        (told(QUEUED, running(1), ("retry", {"attempt": 1, "delay_ms": 900}), running(2),
              progress(2, 1), progress(2, 2), DONE), "not early"),
        (told(QUEUED, ("scheduled", {"run_at_ms": 999}), running(1), progress(1, 1),
              progress(1, 2), DONE), "not early"),
        (tuple(replace(event, ts=1000 - at * 50) for at, event in enumerate(STORY)),
         "time goes on"),
    ],
)  # fmt: skip
def test_a_bad_story_is_not_believed(events: tuple[Event, ...], rule: str) -> None:
    assert rule in rules(history(events))


def test_lost_and_stuck_jobs_are_found() -> None:
    lost = history()
    lost.records["j"] = Record("j", {}, ())
    assert rules(lost) == {"lost"}
    assert rules(history(STORY[:2], status="running")) == {"stuck"}


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
def test_a_change_for_the_worse_is_found(change: Callable[[History], object], rule: str) -> None:
    found = history()
    change(found)
    assert rule in rules(found)


def test_a_job_ends_as_it_was_ordered_to() -> None:
    doomed = replace(ECHO, may_end=frozenset({"error"}), errors=frozenset({"boom"}))
    assert "ends as ordered" in rules(history(order=doomed))
    events = (*STORY[:-1], Event("200-0", "error", 200, {"kind": "bang"}))
    failed = history(events, doomed, "error")
    failed.records["j"].fields["error"] = '{"kind":"bang"}'
    assert rules(failed) == {"ends as ordered"}
    failed.records["j"].fields["error"] = '{"kind":"boom"}'
    assert rules(failed) == set()


def test_only_who_was_to_be_is_canceled() -> None:
    order = replace(ECHO, may_end=frozenset({"done", "canceled"}))
    events = (*STORY[:-1], Event("200-0", "canceled", 200, {}))
    assert rules(history(events, order, "canceled")) == {"canceled as asked"}
    assert rules(history(events, order, "canceled", cancel_sent_ms=60)) == set()


def test_a_limit_of_attempts_holds_but_for_those_handed_back() -> None:
    order = replace(ECHO, wishes={"max_attempts": 1})
    events = told(QUEUED, running(1), running(2), progress(2, 1), progress(2, 2), DONE)
    assert rules(history(events, order)) == {"attempts count up"}
    events = told(
        QUEUED, running(1), ("released", {"attempt": 1}), running(2), progress(2, 1),
        progress(2, 2), DONE,
    )  # fmt: skip
    assert rules(history(events, order)) == set()


def test_a_scheduled_job_waits_its_time() -> None:
    order = replace(ECHO, wishes={"delay_s": 0.04})
    assert rules(history(order=order)) == set()
    order = replace(ECHO, wishes={"delay_s": 0.09})
    assert rules(history(order=order)) == {"not early"}


@pytest.mark.parametrize(
    "left",
    [
        Leftovers(pending=1),
        Leftovers(unread=1),
        Leftovers(scheduled=1),
        Leftovers(endless=("job:j",)),
        Leftovers(leases=("j",)),
        Leftovers(strangers=("k",)),
        Leftovers(letters=Counter({"j": 2})),
    ],
)
def test_nothing_is_left_over(left: Leftovers) -> None:
    found = history()
    found.leftovers = left
    assert len(oracle.check(found)) == 1


IDS = [event.id for event in STORY]


@pytest.mark.parametrize(
    "seen",
    [IDS[:-1], IDS[1:], [*IDS, IDS[-1]], [IDS[0], IDS[2], IDS[1], *IDS[3:]], []],
    ids=["end missing", "beginning missing", "doubled", "out of order", "nothing"],
)
def test_watchers_see_everything_once_in_order(seen: list[str]) -> None:
    found = history()
    found.watched = [Watched("j", list(IDS), ended=True)]
    assert rules(found) == set()
    found.watched = [Watched("j", seen, ended=True)]
    assert rules(found) == {"watched"}


def test_watchers_are_told_the_end_and_nothing_bad() -> None:
    found = history()
    found.watched = [Watched("j", list(IDS))]
    assert rules(found) == {"watched"}
    found.watched = [Watched("j", list(IDS), ended=True, faults=["the stream said gap"])]
    assert rules(found) == {"watched"}


# -- diaries -------------------------------------------------------------------------------


def stint(
    job_id: str, began: int, ended: int | None, task: str = "chat", attempt: int = 1
) -> Stint:
    return Stint("worker-0.1", job_id, attempt, task, began, ended)


def test_too_many_at_once_are_found() -> None:
    ran = [stint("a", 0, 10), stint("b", 5, 15), stint("c", 10, None)]
    assert stints.most_at_once(ran) == 2
    assert list(stints.check(ran, {}, 2, {})) == []
    assert [found.rule for found in stints.check(ran, {}, 1, {})] == ["places"]
    assert [found.rule for found in stints.check(ran, {}, 2, {"chat": 1})] == ["places"]


def test_a_thread_counts_while_it_certainly_had_its_place() -> None:
    ran = [stint("j", 0, 10, "code"), stint("k", 5, 15)]
    finished = Record("j", FIELDS, STORY)
    assert len(list(stints.check(ran, {"j": finished}, 1, {}))) == 1
    taken_over = Record("j", FIELDS, told(QUEUED, running(1), running(2), DONE))
    timed_out = Record("j", FIELDS, told(QUEUED, running(1), ("error", {"kind": "timeout"})))
    for record in (taken_over, timed_out):
        assert list(stints.check(ran, {"j": record}, 1, {})) == []


def test_recovery_is_from_the_kill_to_the_next_attempt() -> None:
    events = (
        Event("1-0", "running", 100, {"attempt": 1}),
        Event("2-0", "running", 2600, {"attempt": 2}),
    )
    kill = Kill("worker-0.1", at_ms=1100)
    ran = [stint("j", 0, None), stint("other", 0, 5)]
    [recovery] = stints.recoveries([kill], ran, {"j": Record("j", FIELDS, events)})
    assert (recovery.job_id, recovery.seconds) == ("j", 1.5)


def test_a_diary_is_read_as_it_was_written(tmp_path: Path) -> None:
    diary = Diary(str(tmp_path), "worker-0")
    with diary.stint("a", 1, "chat"):
        unended = diary.stint("b", 2, "code")
        unended.__enter__()
    first, second = read_all(tmp_path)
    assert (first.job_id, first.attempt, first.task) == ("a", 1, "chat")
    assert first.ended_ns is not None
    assert (second.job_id, second.ended_ns) == ("b", None)


def test_one_attempt_that_ran_twice_in_one_process_is_two_stints(tmp_path: Path) -> None:
    """After a failover that lost the first one's beginning."""
    diary = Diary(str(tmp_path), "worker-0")
    first, second, third = (diary.stint("a", 1, "chat") for _ in range(3))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    third.__enter__()
    read = read_all(tmp_path)
    began = [found.began_ns for found in read]
    assert began == sorted(began)
    assert [found.ended_ns is None for found in read] == [False, False, True]
    assert stints.most_at_once(read) == 2


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
    """A port whose server answers each piece of data with itself."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    return port


async def test_the_proxy_passes_on_loses_and_falls_silent(echo: int) -> None:
    proxy = Proxy(echo)
    await proxy.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"EVAL 1")
        assert await reader.read(100) == b"EVAL 1"
        proxy.lose(1)
        writer.write(b"PING")  # changes nothing, so its reply is not worth losing
        assert await reader.read(100) == b"PING"
        writer.write(b"EVAL 2")
        with pytest.raises((ConnectionError, EOFError)):
            await reader.readexactly(1)
        assert proxy.lost_replies == 1

        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        proxy.silence(requests_pass=False)
        writer.write(b"x")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        proxy.speak()
        writer.write(b"y")  # what was silent once stays so
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

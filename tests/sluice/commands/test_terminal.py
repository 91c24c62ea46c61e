"""Commands on a terminal: questions, colours, Ctrl-C, control characters; `sluice top`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from sluice.commands.admin.top import Snapshot, screen_lines
from sluice.errors import ExitCode
from sluice.terminal.render import Colors
from tests.support.client.site import Site
from tests.support.processes.commands import Terminal

pytestmark = pytest.mark.process

Start = Callable[..., Terminal]


def test_submit_prints_the_watch_command(terminal: Start) -> None:
    shown = terminal("submit", "chat", "hi")
    assert shown.end() == 0
    assert "sluice watch" in shown.shown


def test_stream_then_ctrl_c_and_cancel(terminal: Start, site: Site) -> None:
    shown = terminal("submit", "chat", "forever", "--stream")
    shown.wait_for("well …")
    shown.ctrl_c()
    shown.wait_for(r"cancel the job\?")
    shown.press("y\n")
    assert shown.end() == ExitCode.CANCELED
    assert "canceled" in shown.shown


@pytest.mark.parametrize(
    "answer", ["n\n", pytest.param("\x03", marks=pytest.mark.slow("the same with Ctrl-C"))]
)
def test_ctrl_c_and_no_leaves_the_job_running(terminal: Start, site: Site, answer: str) -> None:
    job_id = site.submit("forever")
    shown = terminal("watch", job_id)
    shown.wait_for("well …")
    shown.ctrl_c()
    shown.wait_for(r"cancel the job\?")
    shown.press(answer)
    assert shown.end() == ExitCode.INTERRUPTED
    assert f"sluice watch {job_id}" in shown.shown or answer == "\x03"
    assert site.run("get", job_id, "--field", "status").out == "running\n"
    site.cancel(job_id)


@pytest.mark.slow("waits for the progress of a job")
def test_ctrl_c_while_waiting_leaves_the_job_running(terminal: Start, site: Site) -> None:
    shown = terminal("submit", "chat", "forever", "--wait")
    shown.wait_for(r"running for \d")  # progress after two seconds
    shown.ctrl_c()
    assert shown.end() == ExitCode.INTERRUPTED
    followed = re.search("the job keeps running; to follow it: sluice watch (\\S+)", shown.shown)
    assert followed is not None, shown.shown
    site.cancel(followed[1])


@pytest.mark.parametrize(
    "words", [("--stream",), ("--wait",), ("--wait", "--text"), ("--wait", "-o", "json")]
)
def test_control_characters_are_not_printed(
    terminal: Start, site: Site, words: tuple[str, ...]
) -> None:
    shown = terminal("submit", "chat", "hostile", *words)
    assert shown.end() == 0
    for sequence in ("\x1b[2J", "\x07", "\u202e"):
        assert sequence not in shown.shown


def test_colours_depend_on_terminal_and_environment(terminal: Start, site: Site) -> None:
    job_id = site.submit("hi")
    site.wait_for(job_id, "done")
    coloured = terminal("get", job_id)
    assert coloured.end() == 0
    assert "\x1b[32mdone\x1b[0m" in coloured.shown
    for plain in (terminal("get", job_id, NO_COLOR="1"), terminal("get", job_id, TERM="dumb")):
        assert plain.end() == 0
        assert "\x1b" not in plain.shown
    assert "\x1b" not in site.run("get", job_id).out


def test_cancel_all_matching_asks_first(terminal: Start, site: Site) -> None:
    jobs = [site.submit("forever") for _ in range(3)]
    for job_id in jobs:
        site.wait_for(job_id, "running")
    piped = site.run("cancel", "--all-matching", "--task", "chat")
    assert piped.code == ExitCode.USAGE
    assert "-y" in piped.err
    shown = terminal("cancel", "--all-matching", "--task", "chat")
    shown.wait_for(r"cancel 3 jobs\? \[y/N\]")
    shown.press("\n")
    assert shown.end() == ExitCode.FAILED
    assert site.run("get", jobs[0], "--field", "status").out == "running\n"
    shown = terminal("cancel", "--all-matching", "--task", "chat")
    shown.wait_for(r"\[y/N\]")
    shown.press("yes\n")
    assert shown.end() == ExitCode.OK
    for job_id in jobs:
        site.wait_for(job_id, "canceled")


# -- sluice top: screen layout, keys and line output -------------------------------------------


ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
STATS = {
    "resolution_s": 1,
    "now": {"running": 2, "slots": 16, "depth": 5, "workers": 1, "done": 3, "e2e_p95_ms": 1234},
    "series": {"ts": [1, 2, 3], "done": [0, 5, None], "depth": [1, 2, 3]},
}
WORKER = {
    "consumer": "w\x1b[2J1", "host": "host1", "in_flight": 2, "max_inflight": 16,
    "rss_bytes": 50 << 20, "seen_ms": 1, "started_ms": 1, "tasks": ["chat"],
}  # fmt: skip
JOB = {
    "job_id": "6f1c", "task": "chat", "status": "error", "created_ts": 1, "updated_ts": 5,
    "ttl_s": 9, "error": {"kind": "x", "message": "no\x1b[31m\nspace"},
}  # fmt: skip


def full_snapshot() -> Snapshot:
    return Snapshot(
        "http://h", 1e12, STATS, {"paused": {"why": "a\x07 move"}}, [WORKER], [JOB] * 40
    )


@pytest.mark.parametrize(("columns", "rows"), [(100, 30), (40, 10), (80, 24), (200, 60), (10, 3)])
def test_lines_fit_the_screen(columns: int, rows: int) -> None:
    shown = screen_lines(full_snapshot(), columns, rows, Colors(False))
    assert len(shown) <= rows
    # Tables do not shrink columns below a minimum width.
    assert all(len(line) <= max(columns, 68) for line in shown), shown
    assert not any("\x1b" in line or "\x07" in line for line in shown)


def test_screen_shows_the_key_figures() -> None:
    shown = "\n".join(screen_lines(full_snapshot(), 120, 40, Colors(False)))
    for words in ("running 2/16", "waiting 5", "p95 1.2 s", "paused: a? move", "w?[2J1", "6f1c"):
        assert words in shown


def test_snapshot_without_statistics() -> None:
    view = Snapshot("http://h", 0)
    view.problems.append("no statistics: \x1b[31m")
    assert len(screen_lines(view, 80, 24, Colors(False))) >= 2


def test_full_screen_is_entered_and_left(site: Site, terminal: Start) -> None:
    site.submit("hi there")
    shown = terminal("top", "--every", "0.2s")
    shown.wait_for("space pauses")
    assert ENTER in shown.shown
    assert LEAVE not in shown.shown
    shown.press(" ")
    shown.wait_for("paused: space resumes")
    shown.press("q")
    assert shown.end() == ExitCode.OK
    assert shown.shown.rstrip().endswith(LEAVE)


@pytest.mark.parametrize("how", ["ctrl-c", "terminate"])
def test_screen_is_restored_on_signals(site: Site, terminal: Start, how: str) -> None:
    shown = terminal("top")
    shown.wait_for("space pauses")
    if how == "ctrl-c":
        shown.ctrl_c()
    else:
        shown.process.terminate()
    assert shown.end() in (ExitCode.OK, ExitCode.INTERRUPTED, 128 + 15)
    assert LEAVE in shown.shown


def test_in_a_pipe_it_prints_one_line_per_refresh(site: Site) -> None:
    ran = site.run("top", "-n", "2", "--every", "0.2s")
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 2
    assert "\x1b" not in ran.out
    ran = site.run("top", "-n", "1", "-o", "jsonl")
    assert "running" in json.loads(ran.out)

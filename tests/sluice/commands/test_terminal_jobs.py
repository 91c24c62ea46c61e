"""Commands for jobs on a terminal: questions, colours, Ctrl-C, control characters."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from sluice.errors import ExitCode
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

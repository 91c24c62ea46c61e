"""Operator commands on a real gateway: queue, worker, stats, dlq, bench, ls."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import ExitCode
from tests.support.processes.commands import TIMEOUT_S, Stack, Terminal
from tests.support.processes.worker import wait_until

pytestmark = pytest.mark.process


def run_json(stack: Stack, *words: str) -> Any:
    ran = stack.run(*words, "-o", "json")
    assert ran.code == 0, ran
    return json.loads(ran.out)


def test_paused_queue_keeps_new_jobs(stack: Stack) -> None:
    [queue] = run_json(stack, "queue", "ls")["queues"]
    assert queue["paused"] is None
    paused = stack.run("queue", "pause", "--why", "a \x1b[2J move")
    assert (paused.code, paused.out) == (0, "")
    try:
        shown = stack.run("queue", "ls")
        assert "paused" in shown.out
        assert "a ?[2J move" in shown.err
        wait_until(lambda: run_json(stack, "worker", "ls")[0]["holding"], TIMEOUT_S)
        stack.submit("hi")  # a read in progress may still take this one
        job_id = stack.submit("hi")
        wait_until(lambda: stack.run("queue", "depth").out in ("1\n", "2\n"), TIMEOUT_S)
        stuck = stack.run("queue", "drain", "--timeout", "0.1")
        assert stuck.code in (ExitCode.FAILED, ExitCode.TIMEOUT)
        assert stack.run("result", job_id).code == ExitCode.TIMEOUT
    finally:
        assert stack.run("queue", "resume").code == 0
    assert stack.run("result", job_id, "--wait", "--timeout", "30s").code == 0
    assert stack.run("queue", "drain", "--timeout", "30s").code == 0
    assert stack.run("queue", "pause", "no-such-queue").code == ExitCode.NOT_FOUND


def test_worker_ls_and_show(stack: Stack) -> None:
    wait_until(lambda: stack.run("worker", "ls").out, TIMEOUT_S)
    [worker] = run_json(stack, "worker", "ls")
    ran = stack.run("worker", "ls")
    head, row = ran.out.splitlines()
    assert head.split()[0] == "WORKER"
    assert row.split()[0] == worker["consumer"]
    shown = stack.run("worker", "show", worker["consumer"]).out
    assert worker["host"] in shown


def test_stats(stack: Stack) -> None:
    stack.run("submit", "chat", "hi", "--wait")
    wait_until(lambda: "done/s" in stack.run("stats").out, TIMEOUT_S)
    stats = run_json(stack, "stats", "1h")
    assert stats["range"] == "1h"
    rows = [json.loads(line) for line in stack.run("stats", "-o", "jsonl").out.splitlines()]
    assert rows
    assert {"ts", "done", "depth"} <= set(rows[0])


def add_dead_letters(stack: Stack, count: int) -> None:
    """Enqueue messages that no worker can run."""
    client: Any = stack.server.client
    before = client.xlen("jobs:dlq")
    for number in range(count):
        client.xadd(
            "jobs:stream",
            {"job_id": f"broken-{number}", "task": "no\x1b[31msuch", "payload": "{}"},
        )
    wait_until(lambda: client.xlen("jobs:dlq") == before + count, TIMEOUT_S)


def test_dead_letters(stack: Stack, terminal: Callable[..., Terminal]) -> None:
    assert "no dead letters" in stack.run("dlq", "groups").err
    add_dead_letters(stack, 3)
    groups = run_json(stack, "dlq", "groups")
    assert sum(group["count"] for group in groups) == 3
    for words in (("groups",), ("ls",)):
        shown = stack.run("dlq", *words)
        assert shown.code == 0
        assert "\x1b" not in shown.out
    listed = run_json(stack, "dlq", "ls")
    assert len(listed) == 3
    assert len(run_json(stack, "dlq", "ls", "-n", "2")) == 2
    assert run_json(stack, "dlq", "show", listed[0]["id"])["id"] == listed[0]["id"]
    assert listed[0]["id"] in stack.run("dlq", "show", listed[0]["id"]).out

    unconfirmed = stack.run("dlq", "redrive", "--all")
    assert unconfirmed.code == ExitCode.USAGE
    dry = stack.run("dlq", "redrive", "--all", "--dry-run", "-o", "json")
    assert json.loads(dry.out)["dry_run"] is True
    assert len(run_json(stack, "dlq", "ls")) == 3

    assert stack.run("dlq", "purge", listed[0]["id"]).code == ExitCode.USAGE
    assert run_json(stack, "dlq", "purge", listed[0]["id"], "-y") == {"purged": 1}
    shown = terminal("dlq", "purge", "--all")
    shown.wait_for(r"permanently delete all dead letters\? \[y/N\]")
    shown.press("y\n")
    assert shown.end() == 0
    assert "2 dead letters deleted" in shown.shown
    assert run_json(stack, "dlq", "ls") == []


def test_bench_counts_every_job_end(stack: Stack, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    report = run_json(stack, "bench", "-n", "20", "--save", str(kept))
    assert report["ok"]
    assert report["ends"] == {"done": 20}
    assert (report["lost"], report["ended_twice"], report["refused"]) == ([], [], [])
    assert report["end_to_end_ms"]["p50"] <= report["end_to_end_ms"]["p99"]
    assert json.loads(kept.read_text()) == report
    compared = stack.run("bench", "-n", "5", "--against", str(kept))
    assert compared.code == 0
    assert "%)" in compared.out
    failing = stack.run("bench", "-n", "3", "--payload", "fail")
    assert failing.code == ExitCode.FAILED
    assert "3 error" in failing.out
    assert stack.run("bench", "--against", "/no/such").code == ExitCode.USAGE


def test_ls_filters_and_formats(stack: Stack) -> None:
    jobs = [stack.submit(f"needle {number}") for number in range(3)]
    for job_id in jobs:
        stack.wait_for(job_id, "done")
    found = stack.run("ls", "-s", "needle", "--ids")
    assert found.out.split() == jobs[::-1]
    assert stack.run("ls", "-s", jobs[0][:13], "--ids").out.split() == [jobs[0]]
    assert len(run_json(stack, "ls", "-n", "2")) == 2
    lines = stack.run("ls", "-s", "needle", "-o", "jsonl").out.splitlines()
    assert [json.loads(line)["job_id"] for line in lines] == jobs[::-1]
    shown = stack.run("ls", "--status", "done", "--task", "chat", "--since", "1h", "-n", "2")
    assert "only the first 2 are shown" in shown.err
    assert shown.out.splitlines()[0].split() == [
        "JOB", "TASK", "STATUS", "CREATED", "TOOK", "ERROR",
    ]  # fmt: skip
    assert stack.run("ls", "--since", "yesterday").code == ExitCode.USAGE
    none = stack.run("ls", "-s", "no such words")
    assert (none.code, none.out) == (0, "")
    assert run_json(stack, "ls", "-s", "no such words") == []


def test_ls_watch_refreshes_until_ctrl_c(stack: Stack, terminal: Callable[..., Terminal]) -> None:
    stack.submit("seen")
    shown = terminal("ls", "--watch", "--every", "0.2s")
    shown.wait_for(r"(?s)STATUS.*\x1b\[H\x1b\[2J.*STATUS")
    shown.ctrl_c()
    assert shown.end() == ExitCode.INTERRUPTED

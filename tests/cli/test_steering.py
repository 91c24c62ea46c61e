"""Commands for the whole: queue, workers, numbers, dead letters, bench; on a real gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client.exits import Exit
from tests.cli.rig import PATIENCE_S, House, Terminal
from tests.worker.processes import wait_until

pytestmark = pytest.mark.process


def told(house: House, *words: str) -> Any:
    ran = house.run(*words, "-o", "json")
    assert ran.code == 0, ran
    return json.loads(ran.out)


def test_a_paused_queue_keeps_what_comes(house: House) -> None:
    [queue] = told(house, "queue", "ls")["queues"]
    assert queue["paused"] is None
    paused = house.run("queue", "pause", "--why", "a \x1b[2J move")
    assert (paused.code, paused.out) == (0, "")
    try:
        shown = house.run("queue", "ls")
        assert "paused" in shown.out
        assert "a ?[2J move" in shown.err
        wait_until(lambda: told(house, "worker", "ls")[0]["holding"], PATIENCE_S)
        house.submit("hi")  # a read that was under way may still have taken it
        job_id = house.submit("hi")
        wait_until(lambda: house.run("queue", "depth").out in ("1\n", "2\n"), PATIENCE_S)
        stuck = house.run("queue", "drain", "--timeout", "0.1")
        assert stuck.code in (Exit.FAILED, Exit.TIMEOUT)
        assert house.run("result", job_id).code == Exit.TIMEOUT
    finally:
        assert house.run("queue", "resume").code == 0
    assert house.run("result", job_id, "--wait", "--timeout", "30s").code == 0
    assert house.run("queue", "drain", "--timeout", "30s").code == 0
    assert house.run("queue", "pause", "no-such-queue").code == Exit.MISSING


def test_workers(house: House) -> None:
    wait_until(lambda: house.run("worker", "ls").out, PATIENCE_S)
    [worker] = told(house, "worker", "ls")
    ran = house.run("worker", "ls")
    head, row = ran.out.splitlines()
    assert head.split()[0] == "WORKER"
    assert row.split()[0] == worker["consumer"]
    shown = house.run("worker", "show", worker["consumer"]).out
    assert worker["host"] in shown


def test_numbers(house: House) -> None:
    house.run("submit", "chat", "hi", "--wait")
    wait_until(lambda: "done/s" in house.run("stats").out, PATIENCE_S)
    stats = told(house, "stats", "1h")
    assert stats["range"] == "1h"
    rows = [json.loads(line) for line in house.run("stats", "-o", "jsonl").out.splitlines()]
    assert rows
    assert {"ts", "done", "depth"} <= set(rows[0])


def letters(house: House, number: int) -> None:
    """Messages that nobody can run."""
    client: Any = house.server.client
    before = client.xlen("jobs:dlq")
    for place in range(number):
        client.xadd(
            "jobs:stream",
            {"job_id": f"broken-{place}", "task": "no\x1b[31msuch", "payload": "{}"},
        )
    wait_until(lambda: client.xlen("jobs:dlq") == before + number, PATIENCE_S)


def test_dead_letters(house: House, terminal: Callable[..., Terminal]) -> None:
    assert "no dead letters" in house.run("dlq", "groups").err
    letters(house, 3)
    groups = told(house, "dlq", "groups")
    assert sum(group["count"] for group in groups) == 3
    for words in (("groups",), ("ls",)):
        shown = house.run("dlq", *words)
        assert shown.code == 0
        assert "\x1b" not in shown.out
    listed = told(house, "dlq", "ls")
    assert len(listed) == 3
    assert len(told(house, "dlq", "ls", "-n", "2")) == 2
    assert told(house, "dlq", "show", listed[0]["id"])["id"] == listed[0]["id"]
    assert listed[0]["id"] in house.run("dlq", "show", listed[0]["id"]).out

    unasked = house.run("dlq", "redrive", "--all")
    assert unasked.code == Exit.USAGE
    dry = house.run("dlq", "redrive", "--all", "--dry-run", "-o", "json")
    assert json.loads(dry.out)["dry_run"] is True
    assert len(told(house, "dlq", "ls")) == 3

    assert house.run("dlq", "purge", listed[0]["id"]).code == Exit.USAGE
    assert told(house, "dlq", "purge", listed[0]["id"], "-y") == {"purged": 1}
    shown = terminal("dlq", "purge", "--all")
    shown.wait_for(r"for good\? \[y/N\]")
    shown.press("y\n")
    assert shown.end() == 0
    assert "2 letters forgotten" in shown.shown
    assert told(house, "dlq", "ls") == []


def test_bench_counts_every_end(house: House, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    report = told(house, "bench", "-n", "20", "--save", str(kept))
    assert report["ok"]
    assert report["ends"] == {"done": 20}
    assert (report["lost"], report["ended_twice"], report["refused"]) == ([], [], [])
    assert report["end_to_end_ms"]["p50"] <= report["end_to_end_ms"]["p99"]
    assert json.loads(kept.read_text()) == report
    compared = house.run("bench", "-n", "5", "--against", str(kept))
    assert compared.code == 0
    assert "%)" in compared.out
    failing = house.run("bench", "-n", "3", "--payload", "fail")
    assert failing.code == Exit.FAILED
    assert "3 error" in failing.out
    assert house.run("bench", "--against", "/no/such").code == Exit.USAGE


def test_listing(house: House) -> None:
    jobs = [house.submit(f"needle {place}") for place in range(3)]
    for job_id in jobs:
        house.wait_for(job_id, "done")
    found = house.run("ls", "-s", "needle", "--ids")
    assert found.out.split() == jobs[::-1]
    assert house.run("ls", "-s", jobs[0][:13], "--ids").out.split() == [jobs[0]]
    assert len(told(house, "ls", "-n", "2")) == 2
    lines = house.run("ls", "-s", "needle", "-o", "jsonl").out.splitlines()
    assert [json.loads(line)["job_id"] for line in lines] == jobs[::-1]
    shown = house.run("ls", "--status", "done", "--task", "chat", "--since", "1h", "-n", "2")
    assert "there may be more than 2" in shown.err
    assert shown.out.splitlines()[0].split() == [
        "JOB", "TASK", "STATUS", "CREATED", "TOOK", "ERROR",
    ]  # fmt: skip
    assert house.run("ls", "--since", "yesterday").code == Exit.USAGE
    none = house.run("ls", "-s", "no such words")
    assert (none.code, none.out) == (0, "")
    assert told(house, "ls", "-s", "no such words") == []


def test_listing_again_and_again(house: House, terminal: Callable[..., Terminal]) -> None:
    house.submit("seen")
    shown = terminal("ls", "--watch", "--every", "0.2s")
    shown.wait_for(r"(?s)STATUS.*\x1b\[H\x1b\[2J.*STATUS")
    shown.ctrl_c()
    assert shown.end() == Exit.INTERRUPTED

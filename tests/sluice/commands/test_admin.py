"""Operator commands on a real gateway, and the commands rag, image and workflow."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import ExitCode
from tests.support.client.scripted_gateway import ScriptedGateway, answer
from tests.support.client.site import Site
from tests.support.processes.commands import TIMEOUT_S, Terminal, run_here
from tests.support.processes.worker import wait_until

pytestmark = pytest.mark.process


def test_paused_queue_keeps_new_jobs(site: Site) -> None:
    [queue] = site.run_json("queue", "ls")["queues"]
    assert queue["paused"] is None
    paused = site.run("queue", "pause", "--why", "a \x1b[2J move")
    assert (paused.code, paused.out) == (0, "")
    try:
        shown = site.run("queue", "ls")
        assert "paused" in shown.out
        assert "a ?[2J move" in shown.err
        wait_until(lambda: site.run_json("worker", "ls")[0]["holding"], TIMEOUT_S)
        site.submit("hi")  # a read in progress may still take this one
        job_id = site.submit("hi")
        wait_until(lambda: site.run("queue", "depth").out in ("1\n", "2\n"), TIMEOUT_S)
        stuck = site.run("queue", "drain", "--timeout", "0.1")
        assert stuck.code in (ExitCode.FAILED, ExitCode.TIMEOUT)
        assert site.run("result", job_id).code == ExitCode.TIMEOUT
    finally:
        assert site.run("queue", "resume").code == 0
    assert site.run("result", job_id, "--wait", "--timeout", "30s").code == 0
    assert site.run("queue", "drain", "--timeout", "30s").code == 0
    assert site.run("queue", "pause", "no-such-queue").code == ExitCode.NOT_FOUND


def test_worker_ls_and_show(site: Site) -> None:
    wait_until(lambda: site.run("worker", "ls").out, TIMEOUT_S)
    [worker] = site.run_json("worker", "ls")
    ran = site.run("worker", "ls")
    head, row = ran.out.splitlines()
    assert head.split()[0] == "WORKER"
    assert row.split()[0] == worker["consumer"]
    shown = site.run("worker", "show", worker["consumer"]).out
    assert worker["host"] in shown


def test_integrity_check(site: Site) -> None:
    assert "no violation" in site.run("audit").out
    assert site.run_json("audit")["violations"] == []


def test_stats(site: Site) -> None:
    site.run("submit", "chat", "hi", "--wait")
    wait_until(lambda: "done/s" in site.run("stats").out, TIMEOUT_S)
    stats = site.run_json("stats", "1h")
    assert stats["range"] == "1h"
    rows = [json.loads(line) for line in site.run("stats", "-o", "jsonl").out.splitlines()]
    assert rows
    assert {"ts", "done", "depth"} <= set(rows[0])


def add_dead_letters(site: Site, count: int) -> None:
    """Enqueue messages that no worker can run."""
    client: Any = site.redis.client
    before = client.xlen("jobs:dlq")
    for number in range(count):
        client.xadd(
            "jobs:stream", {"job_id": f"broken-{number}", "task": "no\x1b[31msuch", "payload": "{}"}
        )
    wait_until(lambda: client.xlen("jobs:dlq") == before + count, TIMEOUT_S)


def test_dead_letters(site: Site, terminal: Callable[..., Terminal]) -> None:
    assert "no dead letters" in site.run("dlq", "groups").err
    add_dead_letters(site, 3)
    groups = site.run_json("dlq", "groups")
    assert sum(group["count"] for group in groups) == 3
    for words in (("groups",), ("ls",)):
        shown = site.run("dlq", *words)
        assert shown.code == 0
        assert "\x1b" not in shown.out
    listed = site.run_json("dlq", "ls")
    assert len(listed) == 3
    assert len(site.run_json("dlq", "ls", "-n", "2")) == 2
    assert site.run_json("dlq", "show", listed[0]["id"])["id"] == listed[0]["id"]
    assert listed[0]["id"] in site.run("dlq", "show", listed[0]["id"]).out

    unconfirmed = site.run("dlq", "redrive", "--all")
    assert unconfirmed.code == ExitCode.USAGE
    dry = site.run("dlq", "redrive", "--all", "--dry-run", "-o", "json")
    assert json.loads(dry.out)["dry_run"] is True
    assert len(site.run_json("dlq", "ls")) == 3

    assert site.run("dlq", "purge", listed[0]["id"]).code == ExitCode.USAGE
    assert site.run_json("dlq", "purge", listed[0]["id"], "-y") == {"purged": 1}
    shown = terminal("dlq", "purge", "--all")
    shown.wait_for(r"permanently delete all dead letters\? \[y/N\]")
    shown.press("y\n")
    assert shown.end() == 0
    assert "2 dead letters deleted" in shown.shown
    assert site.run_json("dlq", "ls") == []


def test_bench_counts_every_job_end(site: Site, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    report = site.run_json("bench", "-n", "20", "--save", str(kept))
    assert report["ok"]
    assert report["ends"] == {"done": 20}
    assert (report["lost"], report["ended_twice"], report["refused"]) == ([], [], [])
    assert report["end_to_end_ms"]["p50"] <= report["end_to_end_ms"]["p99"]
    assert json.loads(kept.read_text()) == report
    compared = site.run("bench", "-n", "5", "--against", str(kept))
    assert compared.code == 0
    assert "%)" in compared.out
    failing = site.run("bench", "-n", "3", "--payload", "fail")
    assert failing.code == ExitCode.FAILED
    assert "3 error" in failing.out
    assert site.run("bench", "--against", "/no/such").code == ExitCode.USAGE


def test_ls_filters_and_formats(site: Site) -> None:
    jobs = [site.submit(f"needle {number}") for number in range(3)]
    for job_id in jobs:
        site.wait_for(job_id, "done")
    found = site.run("ls", "-s", "needle", "--ids")
    assert found.out.split() == jobs[::-1]
    assert site.run("ls", "-s", jobs[0][:13], "--ids").out.split() == [jobs[0]]
    assert len(site.run_json("ls", "-n", "2")) == 2
    lines = site.run("ls", "-s", "needle", "-o", "jsonl").out.splitlines()
    assert [json.loads(line)["job_id"] for line in lines] == jobs[::-1]
    shown = site.run("ls", "--status", "done", "--task", "chat", "--since", "1h", "-n", "2")
    assert "only the first 2 are shown" in shown.err
    assert shown.out.splitlines()[0].split() == [
        "JOB", "TASK", "STATUS", "CREATED", "TOOK", "ERROR",
    ]  # fmt: skip
    assert site.run("ls", "--since", "yesterday").code == ExitCode.USAGE
    none = site.run("ls", "-s", "no such words")
    assert (none.code, none.out) == (0, "")
    assert site.run_json("ls", "-s", "no such words") == []


def test_ls_watch_refreshes_until_ctrl_c(site: Site, terminal: Callable[..., Terminal]) -> None:
    site.submit("seen")
    shown = terminal("ls", "--watch", "--every", "0.2s")
    shown.wait_for(r"(?s)STATUS.*\x1b\[H\x1b\[2J.*STATUS")
    shown.ctrl_c()
    assert shown.end() == ExitCode.INTERRUPTED


# -- rag, image and workflow -------------------------------------------------------------------


TEXT = (
    "Failed jobs go to the dead letter queue (DLQ). The DLQ keeps them. Every dead letter queue "
    "has an owner. The DLQ is read each morning.\n"
)


def test_rag_commands(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "hours.md"
    file.write_text("# Hours\n\nThe shop is closed on sundays.\n")
    added = site.run_json("rag", "add", str(file))
    assert [each["document_id"] for each in added] == ["hours.md"]
    stdin = site.run("rag", "add", "-", "--id", "x", stdin=b"open on mondays")
    assert stdin.code == 0
    found = site.run_json("rag", "search", "closed sundays")
    assert found["hits"][0]["document_id"] == "hours.md"
    shown = site.run("rag", "search", "closed sundays")
    assert "closed on sundays" in shown.out
    assert {each["id"] for each in site.run_json("rag", "ls")} == {"hours.md", "x"}
    assert "default" in site.run("rag", "namespaces").out
    assert site.run("rag", "rm", "hours.md", "x").code == 0
    assert site.run_json("rag", "ls") == []
    assert site.run("rag", "add", str(tmp_path / "none")).code == ExitCode.IO_ERROR


@pytest.mark.slow("processes two images")
def test_image_commands(site: Site, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.new("RGB", (40, 30), "red").save(buffer, "PNG")
    (tmp_path / "red.png").write_bytes(buffer.getvalue())
    [done] = site.run_json("image", "upload", str(tmp_path / "red.png"), "--wait")
    assert done["status"] == "processed", done
    image_id = done["image_id"]
    [piped] = site.run("image", "upload", str(tmp_path / "red.png")).out.split()
    assert site.run("image", "watch", piped).code == 0
    target = tmp_path / "small.webp"
    assert site.run("image", "get", image_id, "--to", str(target)).code == 0
    assert target.read_bytes()[8:12] == b"WEBP"
    assert {image_id, piped} <= {each["image_id"] for each in site.run_json("image", "ls")}
    assert "red.png" in site.run("image", "show", image_id).out
    assert site.run("image", "rm", image_id, piped).code == 0
    assert site.run("image", "show", image_id).code == ExitCode.NOT_FOUND


@pytest.mark.slow("processes an image")
def test_broken_image_exits_1(site: Site, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "no.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 100)
    ran = site.run("image", "upload", str(tmp_path / "no.png"), "--wait")
    assert ran.code == ExitCode.FAILED
    assert "failed" in ran.out


def test_workflow_from_start_to_undo(site: Site, tmp_path: Path) -> None:
    (tmp_path / "queues.txt").write_text(TEXT)
    started = site.run("workflow", "start", "--source", str(tmp_path / "queues.txt"))
    assert started.code == 0, started
    [job_id] = started.out.split()
    watched = site.run("workflow", "watch", job_id, "--until-input")
    assert watched.code == ExitCode.INPUT_REQUIRED, watched
    assert site.run_json("workflow", "show", job_id)["status"] == "waiting_input"
    assert job_id in {each["job_id"] for each in site.run_json("workflow", "ls")}
    proposed = site.run_json("workflow", "results", job_id, "--status", "proposed")
    assert proposed
    assert proposed[0]["id"] in site.run("workflow", "results", job_id).out

    assert site.run("workflow", "approve", job_id).code == ExitCode.USAGE
    assert (
        site.run("workflow", "approve", job_id, "--all").code == ExitCode.USAGE
    )  # no terminal to ask on
    decided = site.run("workflow", "approve", job_id, "--min-confidence", "0", "-y")
    assert decided.code == 0, decided
    assert site.run("workflow", "watch", job_id).code == 0
    undone = site.run("workflow", "undo", job_id)
    assert undone.code == 0, undone
    assert undone.out.startswith("undone: undo_")
    late = site.run("workflow", "reject", job_id, "--all", "-y")
    assert late.code == ExitCode.FAILED
    assert "409" in late.err


@pytest.mark.slow("runs a workflow")
def test_workflow_from_a_file_and_cancel(site: Site, tmp_path: Path) -> None:
    request = {"auto_advance": False, "sources": [{"type": "text", "title": "t", "text": TEXT}]}
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    first = site.run_json("workflow", "start", "-f", str(file), "--key", "one")
    again = site.run_json("workflow", "start", "-f", str(file), "--key", "one")
    assert first["job_id"] == again["job_id"]
    canceled = site.run_json("workflow", "cancel", first["job_id"], "--reason", "enough")
    assert canceled["status"] == "cancelled"
    assert site.run("workflow", "watch", first["job_id"]).code == ExitCode.CANCELED


def test_tools_of_workers(site: Site) -> None:
    wait_until(lambda: site.run_json("tools"), TIMEOUT_S)
    head, *rows = site.run("tools").out.splitlines()
    assert head.split() == ["TOOL", "ORIGIN", "WORKERS", "DESCRIPTION"]
    assert rows[0].split()[:3] == ["calculator", "built_in", "1"]
    shown = site.run("tools", "calculator").out
    assert site.run_json("worker", "ls")[0]["consumer"] in shown
    assert '"expression"' in shown
    missing = site.run("tools", "hammer")
    assert missing.code == ExitCode.NOT_FOUND
    assert "no worker offers the tool hammer" in missing.err


def test_without_tools_the_command_says_how_to_get_them(script: ScriptedGateway) -> None:
    script.respond(answer(200, {"tools": []}))
    ran = run_here("tools", SLUICE_URL=script.url)
    assert (ran.code, ran.out) == (0, "")
    assert "start one: sluice up --worker real" in ran.err

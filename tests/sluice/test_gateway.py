"""Both clients with a real gateway, worker and Redis; programs of the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sluice import errors
from sluice.errors import JobCanceled, JobFailed, NotFound, WaitTimeout
from tests.support.client.site import Site
from tests.support.files.photos import encoded, scene
from tests.support.processes.gateway import ROOT, environment
from tests.support.processes.worker import wait_until

pytestmark = pytest.mark.process

WORDS = ["never", "lose", "it"]


def test_submit_stream_and_result(sluice: Any) -> None:
    handle = sluice.submit("chat", {"words": WORDS}, ttl_s=900, max_attempts=2, timeout_s=60)
    events = list(handle.stream())
    assert [each.type for each in events] == ["queued", "running", *["message"] * 3, "done"]
    assert [each.text for each in events if each.text] == WORDS
    assert all(each.ts > 0 and each.step for each in events)
    job = handle.get()
    assert (job.status, job.task, job.ttl_s) == ("done", "chat", 900)
    assert job.payload == {"words": WORDS}
    assert handle.result(30) == {"words": 3}
    assert handle.text(30) == "".join(WORDS)
    # Resume from the middle, and after the end.
    assert [each.id for each in handle.stream(events[2].id)] == [each.id for each in events[3:]]
    assert list(handle.stream(events[-1].id)) == []
    assert handle.cancel().status == "done"
    # A handle created from the id works as well.
    assert sluice.job(handle.id).result() == {"words": 3}


def test_failed_job(sluice: Any) -> None:
    handle = sluice.submit("code", {})
    with pytest.raises(JobFailed, match="it went wrong") as raised:
        handle.result(60)
    assert raised.value.kind == "wrong"
    assert raised.value.job.job_id == handle.id
    assert handle.wait().status == "error"


def test_canceled_job(sluice: Any) -> None:
    handle = sluice.submit("tool", {"tool": "x"})
    wait_until(lambda: handle.get().status == "running", 60)
    with pytest.raises(WaitTimeout):
        handle.wait(0.2)
    canceled = handle.cancel("enough", wait_s=20)
    assert canceled.status in ("canceled", "running")
    with pytest.raises(JobCanceled):
        handle.result(60)


def test_delayed_job(sluice: Any) -> None:
    handle = sluice.submit("chat", {}, delay_s=3600)
    assert handle.get().status == "queued"
    assert handle.cancel().status == "canceled"


def test_jobs_are_listed_in_pages(sluice: Any) -> None:
    handles = [sluice.submit("chat", {"words": [f"listed-{number}"]}) for number in range(5)]
    for handle in handles:
        handle.wait(60)
    expected = {handle.id for handle in handles}
    listed = sluice.jobs(task="chat", status=["done", "error"], page_size=2)
    found = []
    for job in listed:
        found.append(job.job_id)
        if expected <= set(found):
            break
    assert expected <= set(found)
    assert len(found) == len(set(found))
    [one] = sluice.jobs(q=handles[0].id)
    assert (one.job_id, one.status, one.task) == (handles[0].id, "done", "chat")
    page = sluice.jobs_page(limit=1)
    assert len(page.jobs) == 1
    assert page.next


@pytest.mark.slow("restarts a gateway")
def test_stream_survives_a_gateway_restart(sluice: Any, site: Site, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = [str(number) for number in range(40)]
    handle = sluice.submit("chat", {"words": words, "stop_after": 20, "gate": str(gate)})
    events, received = handle.stream(notify=lambda text: None), []
    for event in events:
        if event.text:
            received.append(event.text)
        if len(received) == 20:
            break_off = threading.Thread(target=site.restart_gateway)
            break_off.start()
            break_off.join()
            gate.touch()
            received.append("(restarted)")
        if event.terminal:
            break
    assert received == [*words[:20], "(restarted)", *words[20:]]
    assert handle.result(60) == {"words": 40}


def test_whoami_workers_and_status(sluice: Any) -> None:
    me = sluice.whoami()
    assert "admin" in me.scopes
    worker = next(each for each in sluice.workers() if each.consumer == "w0")
    assert worker.pid
    assert worker.max_inflight > 0
    tools = wait_until(lambda: {tool.name: tool for tool in sluice.tools()}, 60)
    assert "w0" in tools["calculator"].workers
    assert (tools["now"].origin, tools["now"].server) == ("built_in", None)
    assert tools["now"].parameters["type"] == "object"
    status = sluice.status()
    assert status.status in ("pass", "warn")
    assert status.checks["redis"][0]["status"]
    assert sluice.request("GET", "/v1/whoami") == me.raw


def test_dead_letters(sluice: Any, site: Site) -> None:
    client: Any = site.redis.client
    client.xadd("jobs:stream", {"payload": "{}", "task": "chat"})
    dead_letters = wait_until(
        lambda: list(sluice.dead_letters(reason="message_without_job_id")), 60
    )
    dead_letter = dead_letters[0]
    assert sluice.dead_letter(dead_letter.id) == dead_letter
    groups = sluice.dead_letter_groups()
    assert groups.total >= 1
    group = next(each for each in groups.groups if each.reason == "message_without_job_id")
    assert dead_letter in list(sluice.dead_letters(fingerprint=group.fingerprint))
    dry_run = sluice.redrive(fingerprint=group.fingerprint, dry_run=True)
    assert dry_run.dry_run
    assert dry_run.redriven
    job_id = sluice.redrive_one(dead_letter.id)
    assert sluice.job(job_id).wait(60).ended
    with pytest.raises(NotFound):
        sluice.dead_letter(dead_letter.id)
    assert sluice.purge(reason="message_without_job_id") == len(dead_letters) - 1


def test_stats(sluice: Any) -> None:
    sluice.submit("chat", {"words": []}).wait(60)
    stats = wait_until(lambda: sluice.stats("10m") if sluice.stats().series["ts"] else None, 60)
    assert stats.resolution_s == 1
    assert len(stats.series["done"]) == len(stats.series["ts"])
    assert set(sluice.stats("1h", ["depth"]).series) == {"ts", "depth"}
    with pytest.raises(errors.Invalid):
        sluice.stats("1y")


def test_live_updates(sluice: Any) -> None:
    events = sluice.live(["jobs", "stats"])
    try:
        types = {next(events).type}  # the stream is open
        handle = sluice.submit("chat", {"words": ["live"]})
        job_ids: set[str] = set()
        while handle.id not in job_ids or "stats" not in types:
            event = next(events)
            types.add(event.type)
            if event.type == "jobs":
                job_ids |= {job["job_id"] for job in event.data["jobs"]}
    finally:
        events.close()
    assert types <= {"stats", "jobs", "gap"}


def test_integrity_check(sluice: Any) -> None:
    sluice.submit("chat", {"words": []}).wait(60)  # so that there is a job to check
    lines: list[str] = []
    report = sluice.audit(lambda line: lines.append(line["type"]))
    assert lines[-1] == "report"
    assert report.jobs_checked > 0
    assert "totals" in sluice.last_audit()
    entry = next(sluice.trail())  # it is in the audit log
    assert entry.action
    assert entry.ts > 0


@pytest.mark.parametrize("name", ["client_sync.py", "client_async.py"])
def test_examples_run(site: Site, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env=environment(SLUICE_URL=site.url),
        cwd=os.fspath(site.folder),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert ("result: {'text': 'never lose it'" in done.stdout) == (name == "client_sync.py")
    assert ("was canceled" in done.stdout) == (name == "client_async.py")


# -- the documentation -------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "client.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(program: str, site: Site, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(SLUICE_URL=site.url),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("number", "output"),
    [
        (0, "'words': 5"),
        (1, "'words': 1"),
        (2, "wrong {'kind': 'wrong'"),
        pytest.param(3, "The office opens at nine.", marks=pytest.mark.slow("runs a workflow")),
    ],
)
def test_documented_programs_run(site: Site, tmp_path: Path, number: int, output: str) -> None:
    assert len(PROGRAMS) == 4
    (tmp_path / "holiday.jpg").write_bytes(encoded(scene(), "jpeg"))
    printed = run(PROGRAMS[number], site, tmp_path)
    assert output in printed
    if number == 3:
        assert printed.splitlines()[-1] == "completed"
        assert (tmp_path / "holiday.webp").read_bytes()[:4] == b"RIFF"


def test_every_error_is_documented_with_its_exit_code() -> None:
    rows = re.findall(r"^\| (?:[├└] )?(`.*?) \| .* \| ([\d, ]+) \|$", PAGE, re.MULTILINE)
    codes = {}
    for names, numbers in rows:
        given = [int(number) for number in numbers.split(",")]
        for at, name in enumerate(re.findall(r"`(\w+)`", names)):
            codes[name] = given[min(at, len(given) - 1)]
    for name in errors.__dict__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, errors.SluiceError):
            if name in ("Broken", "InProgress"):  # documented with their base class, or not at all
                continue
            assert codes[name] == kind.exit_code, name

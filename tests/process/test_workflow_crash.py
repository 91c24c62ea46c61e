"""Workflows whose worker, gateway or Redis is killed, frozen or emptied during a step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.workflow_rig import AofRedis, Stage
from tests.support.backends import BUNDLED, require_binary
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process

ALL_EVENTS = [
    "job.created",
    "step.started slow",
    "step.completed slow",
    "step.started suggest",
    "step.completed suggest",
    "step.started review",
    "job.waiting_input review",
]


@pytest.fixture
def aof() -> Iterator[AofRedis]:
    server = AofRedis(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture
def stage(aof: AofRedis, spawn: Callable[..., Process], tmp_path: Path) -> Iterator[Stage]:
    made = Stage(aof.url, spawn, tmp_path)
    yield made
    made.close()


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def all_approved(stage: Stage, job_id: str) -> dict[str, Any]:
    """Approves everything and waits for the end."""
    decisions = [{"id": f"sug_00{n}", "action": "approve"} for n in (1, 2)]
    body = {"payload": {"decisions": decisions}}
    status, answer = stage.ask("POST", f"/{job_id}/steps/review/execute", body)
    assert (status, answer["success"]) == (200, True), answer
    return stage.wait_for_status(job_id, "completed")


def ended_well(stage: Stage, job_id: str) -> None:
    """Every event exists exactly once."""
    stage.wait_for_status(job_id, "waiting_input")
    assert stage.event_log(job_id) == ALL_EVENTS
    job = all_approved(stage, job_id)
    assert job["progress"] == 1.0
    events = [words for words in stage.event_log(job_id) if not words.startswith("item.")]
    assert events == [
        *ALL_EVENTS,
        "step.completed review",
        "step.started last",
        "step.completed last",
        "job.completed last",
    ]


def test_a_worker_is_killed_during_a_step(stage: Stage, aof: AofRedis) -> None:
    doomed = stage.worker("doomed")
    job_id = stage.create("slow_v1")
    stage.wait_for_note("slow 1")
    stage.worker("heir")
    os.kill(doomed.pid, signal.SIGKILL)
    stage.wait_for_note("slow 2")
    assert stage.status(job_id)["status"] == "running"
    stage.open_gate()
    ended_well(stage, job_id)
    # The job ends a moment after its step.
    wait_until(lambda: aof.client.xpending("jobs:stream", "workers")["pending"] == 0)


def test_a_frozen_worker_writes_nothing_when_it_resumes(stage: Stage, aof: AofRedis) -> None:
    frozen = stage.worker("frozen")
    job_id = stage.create("slow_v1")
    stage.wait_for_note("slow 1")
    frozen.send_signal(signal.SIGSTOP)
    stage.worker("heir")
    stage.wait_for_note("slow 2")
    stage.open_gate()
    stage.wait_for_status(job_id, "waiting_input")
    before = aof.client.xrange(f"workflow:job:{job_id}:events")
    frozen.send_signal(signal.SIGCONT)
    # Whichever comes first: it renews and learns that it has lost the lease, or reports after the
    # end.
    wait_until(lambda: any(words in frozen.log for words in ("was lost", "superseded", "done by")))
    assert aof.client.xrange(f"workflow:job:{job_id}:events") == before
    ended_well(stage, job_id)


def test_a_killed_worker_ends_its_child_processes(stage: Stage) -> None:
    doomed = stage.worker("doomed")
    job_id = stage.create("hard_v1")
    [pid] = wait_until(lambda: [int(each[4:]) for each in stage.notes if each.startswith("pid")])
    stage.worker("heir")
    os.kill(doomed.pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))
    stage.wait_for_note("hard 2")
    stage.open_gate()
    stage.wait_for_status(job_id, "completed")


def test_a_worker_is_killed_during_parts_of_a_step(stage: Stage) -> None:
    doomed = stage.worker("doomed", max_inflight=3)
    job_id = stage.create("parts_v1")
    stage.wait_for_note("part 1 1")
    stage.wait_for_note("part 3 1")
    stage.worker("heir", max_inflight=8)
    os.kill(doomed.pid, signal.SIGKILL)
    stage.wait_for_note("part 1 2")
    stage.open_gate()
    stage.wait_for_status(job_id, "completed")
    _, answer = stage.ask("GET", f"/{job_id}/results?step=parts")
    items = answer["result"]["items"]
    assert [item["payload"]["part"] for item in items] == list(range(6))
    assert stage.event_log(job_id) == [
        "job.created",
        "step.started parts",
        "step.completed parts",
        "job.completed parts",
    ]


def test_a_gateway_is_killed_during_a_step(stage: Stage) -> None:
    stage.worker("one")
    job_id = stage.create("slow_v1")
    stage.wait_for_note("slow 1")
    stage.gateways[-1].stop(signal.SIGKILL)
    stage.open_gate()
    stage.open_gateway()
    ended_well(stage, job_id)


def test_redis_restarts_during_a_review(stage: Stage, aof: AofRedis) -> None:
    stage.worker("one")
    stage.open_gate()
    job_id = stage.create("slow_v1")
    stage.wait_for_status(job_id, "waiting_input")
    aof.kill()
    aof.start()
    ended_well(stage, job_id)


def test_redis_restarts_during_a_step(stage: Stage, aof: AofRedis) -> None:
    stage.worker("one")
    job_id = stage.create("slow_v1")
    stage.wait_for_note("slow 1")
    aof.kill()
    stage.open_gate()  # it ends while Redis is down
    aof.start()
    ended_well(stage, job_id)


def test_redis_is_emptied_during_a_step(stage: Stage, aof: AofRedis) -> None:
    worker = stage.worker("one")
    job_id = stage.create("slow_v1")
    stage.wait_for_note("slow 1")
    aof.client.flushall()
    assert stage.ask("GET", f"/{job_id}/status")[0] == 404
    stage.open_gate()
    # The workflow definitions are registered again, and the next job works.
    again = stage.create("slow_v1")
    assert again == job_id  # its numbers start again
    ended_well(stage, again)
    assert worker.popen.poll() is None
    assert "Traceback" not in worker.log
    assert "Traceback" not in stage.gateways[-1].log


def test_a_lost_job_fails_its_step(stage: Stage, aof: AofRedis) -> None:
    worker = stage.worker("one")
    job_id = stage.create("slow_v1")
    stage.wait_for_note("slow 1")
    worker.kill()
    [core_job] = aof.client.keys("job:*-*:lease")
    for key in aof.client.keys(core_job.removesuffix(b":lease") + b"*"):
        aof.client.delete(key)
    stage.worker("heir")
    job = stage.wait_for_status(job_id, "failed")
    [slow] = [step for step in job["stepper"] if step["name"] == "slow"]
    assert slow["status"] == "failed"
    assert "step_lost" in str(slow["error"])
    # It can be resumed.
    stage.open_gate()
    status, answer = stage.ask("POST", f"/{job_id}/steps/slow/execute", {"wait_s": 20})
    assert (status, answer["success"]) == (200, True), answer
    stage.wait_for_status(job_id, "waiting_input")


def test_a_step_that_kills_its_workers_fails(stage: Stage) -> None:
    job_id = ""
    for number in range(1, 4):
        worker = stage.worker(f"w{number}", max_attempts=3)
        job_id = job_id or stage.create("slow_v1")
        stage.wait_for_note(f"slow {number}")
        worker.kill()
    stage.worker("last", max_attempts=3)
    job = stage.wait_for_status(job_id, "failed")
    [slow] = [step for step in job["stepper"] if step["name"] == "slow"]
    assert "attempts" in str(slow["error"])


def test_an_echo_worker_refuses_workflows(stage: Stage) -> None:
    stage.worker("echo", "worker.echo_worker", worker_handlers="")
    status, answer = stage.ask("POST", "", {"workflow": "memory_first_v2"})
    assert status == 200, answer
    job_id = answer["job"]["job_id"]
    status, answer = stage.ask("POST", f"/{job_id}/steps/sources/execute", {"wait_s": 20})
    assert (status, answer["success"]) == (200, False), answer
    assert "`python -m worker`" in answer["errors"][0]["message"]

"""Workflows: the overhead of a step and of a decision, and many concurrent workflows.

No-op steps show the cost of a transition; alternating with it, the time of a plain job from
acceptance to end on the same worker.
"""

from __future__ import annotations

import http.client
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from bench import workflow_steps
from bench.jobs import VerificationError
from bench.post import free_port, gateway_env, is_listening
from bench.process import program, wait_until
from bench.scale import Scale
from bench.server import BenchRedis
from sluice.common.contracts.jobs import EventField, EventType, JobKeys
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.statuses import MEMORY_FIRST, WorkflowEvent, WorkflowStatus

JOBS = "/api/workflow/jobs"
_JSON = {"Content-Type": "application/json"}
_TIMEOUT_S = 300.0
_KEYS, _CORE = WorkflowKeys(), JobKeys()
_TEXT = (
    "A dead letter queue (DLQ) keeps what could not be done. The DLQ is read by an operator. "
    "Backpressure keeps producers from running ahead of consumers; back-pressure is an answer "
    "of the gateway. A lease is renewed by its worker while the job runs."
)

Event = tuple[str, int, dict[str, Any]]


@dataclass(frozen=True)
class Workflows:
    """In milliseconds, except for the last two."""

    transition_p50_ms: float
    transition_p95_ms: float
    plain_job_p50_ms: float
    plain_job_p95_ms: float
    decision_p50_ms: float
    decision_p95_ms: float
    #: Number of concurrent workflows, and workflows per second.
    parallel: int
    parallel_per_s: float


def run(redis: BenchRedis, scale: Scale, progress: Callable[[str], None]) -> Workflows:
    """One after the other for the latencies, then all at once."""
    redis.clear()
    port = free_port()
    worker_env = {
        "REDIS_URL": redis.url, "LOG_LEVEL": "warning", "WORKER_HANDLERS": workflow_steps.__name__,
        "AUDIT_EVERY_S": "0", "EMBEDDER": "off",
    }  # fmt: skip
    with (
        program("sluice.gateway", env=gateway_env(redis, port)) as gateway,
        program("sluice.worker", env=worker_env) as worker,
    ):
        wait_until("the gateway", lambda: is_listening(port), while_alive=gateway)
        client = _Client(port)
        wait_until("the worker", lambda: _is_known(client), while_alive=worker)
        transitions: list[float] = []
        decisions: list[float] = []
        plain: list[float] = []
        for _ in range(scale.workflows + 1):
            worker.check()
            steps, decision = _run_one(redis, client)
            transitions += steps
            decisions.append(decision)
            plain += [_plain_job(redis, client) for _ in range(len(steps))]
        warm = len(transitions) // (scale.workflows + 1)  # the first one is warm-up
        per_s = _run_concurrently(redis, client, scale.parallel_workflows)
        client.close()
    found = Workflows(
        median(transitions[warm:]), _p95(transitions[warm:]), median(plain[warm:]),
        _p95(plain[warm:]), median(decisions[1:]), _p95(decisions[1:]),
        scale.parallel_workflows, per_s,
    )  # fmt: skip
    progress(
        f"workflows: a step's transition {found.transition_p95_ms:.1f} ms, decision to next step "
        f"{found.decision_p95_ms:.1f} ms (p95); {found.parallel} concurrent, {per_s:.1f} per second"
    )
    return found


class _Client:
    """A keep-alive connection to the gateway."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """Returns status and JSON body."""
        raw = None if body is None else json.dumps(body)
        self._connection.request(method, path, raw, _JSON)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")

    def create(self, **body: object) -> str:
        """Creates a workflow job; returns its id."""
        status, answer = self.ask("POST", JOBS, body)
        if status != 200:
            raise VerificationError(f"workflow not created: {status} {answer}")
        return str(answer["job"]["job_id"])

    def wait(self, job_id: str, *statuses: WorkflowStatus) -> dict[str, Any]:
        """Waits until the job has one of these statuses; returns it."""
        until = time.monotonic() + _TIMEOUT_S
        names = {status.value for status in statuses}
        while time.monotonic() < until:
            job: dict[str, Any] = self.ask("GET", f"{JOBS}/{job_id}/status")[1]["job"]
            if job["status"] in names:
                return job
            if job["status"] == WorkflowStatus.FAILED.value:
                raise VerificationError(f"{job_id} failed: {job['stepper']}")
            time.sleep(0.01)
        raise VerificationError(f"{job_id} did not end")

    def close(self) -> None:
        self._connection.close()


def _is_known(client: _Client) -> bool:
    status, _ = client.ask("POST", JOBS, {"workflow": workflow_steps.NAME})
    return status == 200


def _run_one(redis: BenchRedis, client: _Client) -> tuple[list[float], float]:
    """Milliseconds from each step's start to the next one's, and from a decision to a step."""
    job_id = client.create(workflow=workflow_steps.NAME, auto_advance=True)
    client.wait(job_id, WorkflowStatus.WAITING_INPUT)
    decided_ms = time.time() * 1000
    status, answer = client.ask(
        "POST", f"{JOBS}/{job_id}/proposals/bulk", {"action": "approve", "all": True}
    )
    if status != 200:
        raise VerificationError(f"decision refused: {status} {answer}")
    client.wait(job_id, WorkflowStatus.COMPLETED)
    events = _events(redis, job_id)
    check_once(job_id, events)
    starts = [ts for kind, ts, _ in events if kind == WorkflowEvent.STEP_STARTED.value]
    waits = [ts for kind, ts, _ in events if kind == WorkflowEvent.JOB_WAITING_INPUT.value]
    before = [ts for ts in starts if ts <= waits[0]]
    timeline = [*before, waits[0]]
    transitions = [float(after - earlier) for earlier, after in itertools.pairwise(timeline)]
    return transitions, starts[-1] - decided_ms


def _plain_job(redis: BenchRedis, client: _Client) -> float:
    """Milliseconds from a plain job's acceptance to its end."""
    body = {"task": "tool", "payload": {"tool": "calculator", "args": {"expression": "1 + 1"}}}
    job_id = client.ask("POST", "/v1/jobs", body)[1]["job_id"]
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until:
        events = _read(redis, _CORE.events(job_id))
        if events and events[-1][0] in (EventType.DONE, EventType.ERROR):
            return float(events[-1][1] - events[0][1])
        time.sleep(0.002)
    raise VerificationError(f"{job_id} did not end")


def _run_concurrently(redis: BenchRedis, client: _Client, count: int) -> float:
    """Runs many jobs of the shipped workflow at once, each with its own source; returns jobs per
    second.
    """
    started = time.monotonic()
    job_ids = [
        client.create(
            workflow=MEMORY_FIRST,
            auto_advance=True,
            namespace=f"bench-{number}",
            review={"mode": "auto", "auto_approve_min_confidence": 0},
            sources=[{"type": "text", "title": f"note {number}", "text": f"{_TEXT} {number}."}],
        )
        for number in range(count)
    ]
    for job_id in job_ids:
        client.wait(job_id, WorkflowStatus.COMPLETED)
    took_s = time.monotonic() - started
    for job_id in job_ids:
        check_once(job_id, _events(redis, job_id))
    return count / took_s


def check_once(job_id: str, events: list[Event]) -> None:
    """Every step started and completed once; the job was created and completed once."""
    for kind in (WorkflowEvent.STEP_STARTED, WorkflowEvent.STEP_COMPLETED):
        steps = [data.get("step") for each, _, data in events if each == kind.value]
        if len(steps) != len(set(steps)):
            raise VerificationError(f"{job_id} has a step with two {kind.value} events")
    for kind in (WorkflowEvent.JOB_CREATED, WorkflowEvent.JOB_COMPLETED):
        if sum(each == kind.value for each, _, _ in events) != 1:
            raise VerificationError(f"{job_id} has not exactly one {kind.value} event")


def _events(redis: BenchRedis, job_id: str) -> list[Event]:
    entries = _raw(redis, _KEYS.events(job_id))
    numbers = [int(entry[0].partition(b"-")[0]) for entry in entries]
    if numbers != list(range(1, len(numbers) + 1)):
        raise VerificationError(f"{job_id} has lost or doubled events")
    return [_event(entry) for entry in entries]


def _read(redis: BenchRedis, key: str) -> list[Event]:
    return [_event(entry) for entry in _raw(redis, key)]


def _raw(redis: BenchRedis, key: str) -> list[Any]:
    entries: list[Any] = redis.pipe.one("XRANGE", key, "-", "+")
    return entries


def _event(entry: Any) -> Event:
    fields = dict(zip(entry[1][::2], entry[1][1::2]))
    kind = fields[EventField.TYPE.encode()].decode()
    data = json.loads(fields[EventField.DATA.encode()] or b"{}")
    return kind, int(fields[EventField.TS.encode()]), data


def _p95(values: list[float]) -> float:
    return quantiles(values, n=20)[-1] if len(values) > 1 else values[0]

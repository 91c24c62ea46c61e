"""A gateway whose workflow jobs a test advances with the workers' calls."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from typing import Any

from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.features.workflows.definitions import StepDefinition, WorkflowDefinition
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import (
    ExecuteCommand,
    IdempotencyClaim,
    NewItem,
    StepExecution,
    StepIds,
    StepResult,
    WorkflowAnswer,
    WorkflowOutcome,
)
from sluice.common.jobs.limits import AdmissionLimits
from tests.support.gateway.asgi import JSON, Answer, Exchange
from tests.support.gateway.harness import Gateway

JOBS = "/api/workflow/jobs"
ADMISSION = AdmissionLimits("workers", 1000, 600)
KEYS = WorkflowKeys()
#: A workflow without sources, proposals and review.
PLAIN = WorkflowDefinition(
    "plain_v1",
    (
        StepDefinition(
            "fetch",
            "f",
            "page",
            0.5,
            options_schema={
                "type": "object",
                "properties": {"depth": {"type": "integer", "maximum": 3}},
                "additionalProperties": False,
            },
        ),
        StepDefinition("store", "st", "page", 0.5),
    ),
)


def fresh_ids() -> StepIds:
    return StepIds(f"ex_{os.urandom(4).hex()}", str(uuid.uuid4()))


def fresh_once() -> IdempotencyClaim:
    return IdempotencyClaim(f"idempotency.wf:test:{uuid.uuid4()}", "same", 600)


def things(count: int) -> list[NewItem]:
    return [NewItem(b'{"n":%d}' % number) for number in range(1, count + 1)]


def proposals(count: int) -> list[NewItem]:
    return [
        NewItem(b'{"from":"t%d","to":"term %d"}' % (number, number), "proposed", number / 1000)
        for number in range(1, count + 1)
    ]


#: By name: method, path and body of requests that change a job with at least two proposals.
CHANGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bulk": ("POST", "proposals/bulk", {"action": "approve", "proposal_ids": [1]}),
    "edit": ("PATCH", "proposals/1/ontology", {"to": "x", "version": 1}),
    "decide": (
        *("POST", "steps/review/execute"),
        {"wait_s": 0, "payload": {"decisions": [{"id": 1, "action": "approve"}]}},
    ),
    "cancel": ("POST", "cancel", {}),
    "undo": ("POST", "undo", {"undo_token": "undo_p_002"}),
    "execute": ("POST", "steps/proposals/execute", {"wait_s": 0, "discard_decisions": True}),
}


def execute_path(job_id: str, step: str) -> str:
    return f"/{job_id}/steps/{step}/execute"


class Workflows:
    """The workflow API for clients, and its store for workers."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.redis = gateway.redis

    @property
    def store(self) -> WorkflowStore:
        return self.gateway.workflows.store

    # -- over HTTP -------------------------------------------------------------------------

    async def post(self, path: str, body: object = None, **headers: str) -> Answer:
        return await self.send(path, body, **headers)

    async def create(self, body: object = None, **headers: str) -> Answer:
        return await self.post("", body, **headers)

    async def create_job(self, body: object = None, **headers: str) -> str:
        """Create a job; returns its id."""
        answer = await self.create(body, **headers)
        assert answer.status == 200, answer
        return answer.json()["job"]["job_id"]

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.gateway.client.get(JOBS + path, headers)

    async def read(self, path: str) -> Any:
        answer = await self.get(path)
        assert answer.status == 200, answer
        return answer.json()

    async def pages(self, path: str, **headers: str) -> list[Any]:
        """The bodies of all pages of a list, their numbers checked."""
        found = await self.gateway.client.pages(JOBS + path, "cursor", headers)
        for body in found:
            result = body.get("result", body)
            page = result["pagination"]
            listed = next(result[name] for name in ("items", "jobs", "events") if name in result)
            assert page["count"] == len(listed)
            assert page["has_more"] is (page["next_cursor"] is not None)
        return found

    async def status(self, job_id: str) -> Any:
        return (await self.read(f"/{job_id}/status"))["job"]

    def begin(
        self, path: str, body: object = None, method: str = "POST", **headers: str
    ) -> Exchange:
        """A request under way, below the jobs; without a body, it is an empty object."""
        sent = {} if body is None else body
        return self.gateway.client.request(method, JOBS + path, {**JSON, **headers}, sent)

    async def send(
        self, path: str, body: object = None, method: str = "POST", **headers: str
    ) -> Answer:
        return await self.begin(path, body, method, **headers).answer()

    async def change(self, job_id: str, name: str, **headers: str) -> Answer:
        """One of the requests above."""
        method, path, body = CHANGES[name]
        return await self.send(f"/{job_id}/{path}", body, method, **headers)

    async def execute(self, job_id: str, step: str, body: object = None, **headers: str) -> Answer:
        """An execute request that does not wait unless the body says so."""
        request = {"wait_s": 0, **(body if isinstance(body, dict) else {})}
        return await self.send(execute_path(job_id, step), request, **headers)

    async def items(self, job_id: str) -> dict[str, Any]:
        """The proposals by their ids."""
        found = await self.read(f"/{job_id}/results?step=proposals&limit=500")
        return {item["id"]: item for item in found["result"]["items"]}

    async def statuses(self, job_id: str) -> list[str]:
        return [item["status"] for item in (await self.items(job_id)).values()]

    async def event_types(self, job_id: str) -> list[str]:
        entries = await self.redis.xrange(f"workflow:job:{job_id}:events")
        return [fields[b"type"].decode() for _, fields in entries]

    async def queued(self) -> list[dict[str, Any]]:
        """Payloads on the core's queue."""
        entries = await self.redis.xrange(self.gateway.keys.queue)
        return [json.loads(fields[b"payload"]) for _, fields in entries]

    # -- as a worker -----------------------------------------------------------------------

    async def start(self, job_id: str, step: str) -> StepExecution:
        outcome = await self.store.execute(
            ExecuteCommand(job_id, step), fresh_once(), fresh_ids(), ADMISSION
        )
        assert outcome.answer is WorkflowAnswer.OK, outcome
        return StepExecution(job_id, outcome.facts["step"], outcome.facts["execution_id"])

    async def complete(
        self, running: StepExecution, items: Sequence[NewItem] = (), summary: str = "", **more: Any
    ) -> WorkflowOutcome:
        result = StepResult(summary or f"Did {running.step}", items, **more)
        outcome = await self.store.complete(running, result, fresh_ids(), 600)
        assert outcome.answer is WorkflowAnswer.OK, outcome
        return outcome

    async def run(
        self, job_id: str, step: str, items: Sequence[NewItem] = (), summary: str = "", **more: Any
    ) -> None:
        """Execute a step and let it succeed."""
        await self.complete(await self.start(job_id, step), items, summary, **more)

    async def until_proposals(self, job_id: str, count: int, sources: int = 3) -> None:
        """Run all steps up to proposals that wait for a review."""
        await self.run(job_id, "sources", things(sources))
        await self.run(job_id, "index_extract", things(2))
        await self.run(job_id, "summarize", things(1))
        summary = f"Generated {count} proposals"
        await self.run(job_id, "proposals", proposals(count), summary)

    async def declare(self, definition: WorkflowDefinition = PLAIN) -> None:
        """As a worker does at its start."""
        await self.redis.hset(KEYS.definitions, definition.name, definition.to_json())

    async def running(self, job_id: str) -> StepExecution:
        """The execution that is running."""
        job = await self.status(job_id)
        [step] = [step for step in job["stepper"] if step["status"] == "running"]
        return StepExecution(job_id, step["name"], step["execution_id"])

    async def work(self, job_id: str, items: Sequence[NewItem] = ()) -> str:
        """Complete the running step as a worker does; returns its name."""
        what = await self.running(job_id)
        await self.complete(what, items or things(2))
        return what.step

    async def work_up_to(self, job_id: str, step: str, count: int = 3) -> None:
        """Complete steps as a worker does, up to and including `step`."""
        while True:
            what = await self.running(job_id)
            results = proposals(count) if what.step == "proposals" else things(2)
            await self.complete(what, results, f"Did {what.step}")
            if what.step == step:
                return

    async def fail(self, job_id: str, **error: Any) -> None:
        """Fail the running step as a worker does."""
        errors = json.dumps([{"code": "boom", "message": "it broke", **error}]).encode()
        await self.store.fail(await self.running(job_id), errors)

    async def reviewing(self, count: int = 3, **body: Any) -> str:
        """A new job that waits for decisions on `count` proposals."""
        job_id = await self.create_job(body)
        await self.until_proposals(job_id, count)
        answer = await self.execute(job_id, "review")
        assert answer.status == 202, answer
        return job_id


def check_envelope(
    answer: Answer, status: int, code: str | None = None, field: str | None = None
) -> dict[str, Any]:
    """The answer is a whole envelope of this kind; returns it."""
    assert answer.status == status, answer
    assert answer.header("content-type") == "application/json"
    envelope: dict[str, Any] = answer.json()
    assert list(envelope)[:4] == ["success", "job_id", "errors", "detail"]
    assert envelope["success"] is False
    assert envelope["detail"]
    assert envelope["errors"]
    for error in envelope["errors"]:
        assert list(error)[:4] == ["code", "message", "field", "item_id"]
        assert error["code"]
        assert error["message"]
    assert "Traceback" not in answer.body.decode()
    if code is not None:
        assert envelope["errors"][0]["code"] == code, envelope
    if field is not None:
        assert envelope["errors"][0]["field"] == field, envelope
    return envelope

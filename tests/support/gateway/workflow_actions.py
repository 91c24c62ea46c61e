"""Requests that change workflow jobs, and the worker's side of the steps they start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from common.features.workflows.types import NewItem, StepExecution
from tests.support.gateway.asgi import Answer, Exchange
from tests.support.gateway.workflows import JOBS, Workflows, proposals, things

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


def begin(
    workflows: Workflows, path: str, body: object = None, method: str = "POST", **headers: str
) -> Exchange:
    """A request under way."""
    sent = {} if body is None else body
    return workflows.gateway.client.request(method, JOBS + path, headers, sent)


async def send(
    workflows: Workflows, path: str, body: object = None, method: str = "POST", **headers: str
) -> Answer:
    return await begin(workflows, path, body, method, **headers).answer()


async def change(workflows: Workflows, job_id: str, name: str, **headers: str) -> Answer:
    """One of the requests above."""
    method, path, body = CHANGES[name]
    return await send(workflows, f"/{job_id}/{path}", body, method, **headers)


def execute_path(job_id: str, step: str) -> str:
    return f"/{job_id}/steps/{step}/execute"


async def execute(
    workflows: Workflows, job_id: str, step: str, body: object = None, **headers: str
) -> Answer:
    """An execute request that does not wait unless the body says so."""
    request = {"wait_s": 0, **(body if isinstance(body, dict) else {})}
    return await send(workflows, execute_path(job_id, step), request, **headers)


async def running(workflows: Workflows, job_id: str) -> StepExecution:
    """The execution that is running."""
    job = await workflows.status(job_id)
    [step] = [step for step in job["stepper"] if step["status"] == "running"]
    return StepExecution(job_id, step["name"], step["execution_id"])


async def work(workflows: Workflows, job_id: str, items: Sequence[NewItem] = ()) -> str:
    """Complete the running step as a worker does; returns its name."""
    what = await running(workflows, job_id)
    await workflows.complete(what, items or things(2))
    return what.step


async def work_up_to(workflows: Workflows, job_id: str, step: str, count: int = 3) -> None:
    """Complete steps as a worker does, up to and including `step`."""
    while True:
        what = await running(workflows, job_id)
        results = proposals(count) if what.step == "proposals" else things(2)
        await workflows.complete(what, results, f"Did {what.step}")
        if what.step == step:
            return


async def fail(workflows: Workflows, job_id: str, **error: Any) -> None:
    """Fail the running step as a worker does."""
    errors = json.dumps([{"code": "boom", "message": "it broke", **error}]).encode()
    await workflows.store.fail(await running(workflows, job_id), errors)


async def reviewing(workflows: Workflows, count: int = 3, **body: Any) -> str:
    """A new job that waits for decisions on `count` proposals."""
    job_id = await workflows.create_job(body)
    await workflows.until_proposals(job_id, count)
    answer = await execute(workflows, job_id, "review")
    assert answer.status == 202, answer
    return job_id


async def items(workflows: Workflows, job_id: str) -> dict[str, Any]:
    """The proposals by their ids."""
    found = await workflows.read(f"/{job_id}/results?step=proposals&limit=500")
    return {item["id"]: item for item in found["result"]["items"]}


async def statuses(workflows: Workflows, job_id: str) -> list[str]:
    return [item["status"] for item in (await items(workflows, job_id)).values()]


async def event_types(workflows: Workflows, job_id: str) -> list[str]:
    entries = await workflows.redis.xrange(f"workflow:job:{job_id}:events")
    return [fields[b"type"].decode() for _, fields in entries]


async def queued(workflows: Workflows) -> list[dict[str, Any]]:
    """Payloads on the core's queue."""
    entries = await workflows.redis.xrange(workflows.gateway.keys.queue)
    return [json.loads(fields[b"payload"]) for _, fields in entries]

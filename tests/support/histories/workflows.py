"""State of a random history of workflow jobs in Redis, and its invariants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import redis

from sluice.common import codec
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.statuses import UNDO_DEPTH
from tests.support.histories.machine import JOBS
from tests.support.store.base import texts
from tests.support.store.workflows import FIVE

KEYS = WorkflowKeys()
STEPS = [step.name for step in FIVE.steps]
WEIGHTS = {step.name: step.weight for step in FIVE.steps}
#: The step that proposes, and the review.
PROPOSES, REVIEW = "second", "review"
COUNTED = ("proposed", "approved", "rejected", "applied")


class State(NamedTuple):
    """An item's state."""

    status: str
    version: int
    edited: bool
    confidence: str
    payload: bytes

    @property
    def content(self) -> tuple[Any, ...]:
        """Everything except the version."""
        return self.status, self.edited, self.confidence, self.payload


@dataclass
class View:
    """A job as stored in Redis, read at once."""

    record: dict[str, str]
    steps: dict[str, str]
    items: dict[str, State]
    numbers: dict[str, int]
    events: list[tuple[bytes, dict[bytes, bytes]]]
    stack: list[str]
    operations: dict[str, Any]
    undoable: dict[str, str]
    outbox: list[Any]
    running: str
    in_review: bool
    #: Job, step and execution of each of its core jobs on the queue.
    queued: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left: dict[str, Any] = field(default_factory=dict)

    def step(self, name: str, what: str = "status") -> str:
        return self.steps.get(f"{name}.{what}", "")

    @property
    def ended(self) -> bool:
        return self.record["status"] in ("completed", "cancelled")

    def statuses(self) -> list[str]:
        return [self.step(name) for name in STEPS]

    def content(self) -> dict[str, Any]:
        """Everything except the time of the last change."""
        record = {name: value for name, value in self.record.items() if name != "updated_ms"}
        return {**vars(self), "record": record}


def read_view(client: redis.Redis, job_id: str) -> View:
    """Read a whole job."""
    pipe = client.pipeline(transaction=False)
    for read in (KEYS.job, KEYS.steps, KEYS.items, KEYS.states, KEYS.operations, KEYS.undoable):
        pipe.hgetall(read(job_id))
    pipe.hgetall(KEYS.data(job_id))
    pipe.hgetall(KEYS.parts(job_id))
    pipe.zrange(KEYS.order(job_id), 0, -1, withscores=True)
    for name in STEPS:
        pipe.zrange(KEYS.step_order(job_id, name), 0, -1, withscores=True)
    pipe.xrange(KEYS.events(job_id))
    pipe.lrange(KEYS.undo(job_id), 0, -1)
    pipe.lrange(KEYS.outbox(job_id), 0, -1)
    pipe.hget(KEYS.running, job_id)
    pipe.zscore(KEYS.reviews, job_id)
    pipe.xrange(JOBS.queue)
    found = pipe.execute()
    record, steps, payloads, states, operations, undoable, data, parts, order = found[:9]
    orders, rest = found[9 : 9 + len(STEPS)], found[9 + len(STEPS) :]
    events, stack, outbox, running, score, queue = rest
    payloads = {name.decode(): value for name, value in payloads.items()}
    items = {}
    for name, raw in texts(states).items():
        status, version, edited, confidence = raw.split(" ")
        items[name] = State(status, int(version), edited == "1", confidence, payloads[name])
    assert set(payloads) == set(items)
    assert sorted(order) == sorted(entry for each in orders for entry in each)
    queued = [codec.loads(fields[b"payload"])["args"] for _, fields in queue]
    ids = [fields[b"job_id"].decode() for _, fields in queue]
    assert len(set(ids)) == len(ids)  # no core job twice
    return View(
        record=texts(record),
        steps=texts(steps),
        items=items,
        numbers={name.decode(): int(number) for name, number in order},
        events=events,
        stack=[token.decode() for token in stack],
        operations={name.decode(): codec.loads(raw) for name, raw in operations.items()},
        undoable=texts(undoable),
        outbox=outbox,
        running=(running or b"").decode(),
        in_review=score is not None,
        queued={
            core_id: (args["step"], args["execution_id"], str(args.get("part", "")))
            for core_id, args in zip(ids, queued, strict=True)
            if args["workflow_job_id"] == job_id
        },
        left={**data, **parts},
    )


def check(client: redis.Redis, job_id: str, view: View, for_good: set[str]) -> None:
    """Check every invariant of one job; `for_good` are items changed without an undo."""
    check_events(view)
    check_items(view)
    check_undo(view, for_good)
    check_steps(client, view)
    pipe = client.pipeline(transaction=False)
    for key in (
        *(KEYS.job, KEYS.steps, KEYS.items, KEYS.states, KEYS.order, KEYS.events, KEYS.undo),
        *(KEYS.operations, KEYS.undoable, KEYS.data, KEYS.parts, KEYS.outbox),
    ):
        pipe.ttl(key(job_id))
    for name in STEPS:
        pipe.ttl(KEYS.step_order(job_id, name))
    assert -1 not in pipe.execute()  # every key expires


def check_events(view: View) -> None:
    numbers = [entry_id for entry_id, _ in view.events]
    assert numbers == [b"%d-0" % number for number in range(1, len(numbers) + 1)]
    assert int(view.record["event_seq"]) == len(numbers)
    delivered = [codec.loads(entry)["seq"] for entry in view.outbox]
    assert delivered == sorted(set(delivered))
    assert set(delivered) <= set(range(1, len(numbers) + 1))


def check_items(view: View) -> None:
    proposals = [state for name, state in view.items.items() if name.startswith("p_")]
    for status in COUNTED:
        counted = sum(1 for state in proposals if state.status == status)
        assert int(view.record.get(status, 0)) == counted, status
    pending = sum(
        1
        for state in proposals
        if state.status == "approved" or (state.edited and state.status == "proposed")
    )
    assert int(view.record.get("pending_changes", 0)) == pending
    assert all(number <= int(view.record["item_seq"]) for number in view.numbers.values())


def check_undo(view: View, for_good: set[str]) -> None:
    stack, operations = view.stack, view.operations
    assert len(stack) == len(set(stack)) <= UNDO_DEPTH
    assert set(stack) <= set(operations)
    for token, operation in operations.items():
        if token not in stack:  # undone by a worker, or not completed
            assert "undone" in operation or "effects" in operation
            assert "items" not in operation
    holders: dict[str, list[str]] = {}
    for token in stack:
        operation = operations[token]
        assert operation.get("items") or "effects" in operation
        for item in operation.get("items") or ():
            mark = "!" if "effects" in operation else ""
            holders.setdefault(item, []).append(mark + token)
    for item, tokens in holders.items():
        assert item in view.items
        # From the last change on, each names the previous one.
        chain = [view.undoable.get(item, "")]
        while chain[-1] in tokens:
            inverse = operations[chain[-1].lstrip("!")]["items"][item]
            chain.append(inverse.get("before", ""))
        if item in for_good:
            assert chain[:-1] == tokens[: len(chain) - 1]
        else:
            assert chain[:-1] == tokens
    assert set(view.undoable) <= set(holders)


def check_steps(client: redis.Redis, view: View) -> None:
    status, statuses = view.record["status"], view.statuses()
    assert (status == "completed") == (set(statuses) == {"complete"})
    running = [name for name in STEPS if view.step(name) == "running"]
    waiting = [name for name in STEPS if view.step(name) == "waiting_input"]
    assert len(running) + len(waiting) <= 1
    assert REVIEW not in running
    if running:
        [name] = running
        execution = view.step(name, "execution")
        assert view.running == f"{name} {execution}"
        core_jobs = [view.step(name, "core_job"), *view.step(name, "part_jobs").split()]
        mine = {core for core, each in view.queued.items() if each[:2] == (name, execution)}
        assert mine == set(core_jobs)
        assert len(core_jobs) == int(view.step(name, "parts") or 1)
        for core_job in core_jobs:
            assert client.hget(JOBS.job(core_job), "status") == b"queued"
        assert status == "running"
    else:
        assert view.running == ""
    assert (status == "waiting_input") == (waiting == [REVIEW]) == view.in_review
    if status == "running" and statuses[2:] == ["complete", "not_started", "not_started"]:
        assert view.record.get("proposed", "0") == "0"  # otherwise the review waits again
    if status in ("failed", "cancelled", "completed"):
        assert view.record["completed_ms"]
    elif status == "running":
        assert view.record["completed_ms"] == ""
    # One core job per started execution, and per part except the first.
    executions = [each[:2] for each in view.queued.values() if each[2] == ""]
    assert len(set(executions)) == len(executions)
    progress = 0.0
    for name in STEPS:
        if view.step(name) == "complete":
            progress += WEIGHTS[name]
        elif view.step(name) in ("running", "waiting_input"):
            done, total = (float(view.step(name, what) or 0) for what in ("done", "total"))
            assert 0 <= done <= total or total == 0
            progress += WEIGHTS[name] * (done / total if total else 0)
    assert -1e-9 <= progress <= 1 + 1e-9

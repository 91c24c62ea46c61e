"""State of a random history of workflow jobs in Redis, and its invariants."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import redis

from common import codec
from common.contracts.jobs import JobKeys
from common.contracts.workflow.keys import WorkflowKeys
from common.contracts.workflow.statuses import UNDO_DEPTH
from common.features.workflows.scripts import WORKFLOW_SCRIPT
from common.features.workflows.store import WorkflowStore
from common.redis.scripts import Record, Reply, unpack
from tests.common.features.workflows.kit import FIVE

JOBS = JobKeys()
KEYS = WorkflowKeys()
STEPS = [step.name for step in FIVE.steps]
WEIGHTS = {step.name: step.weight for step in FIVE.steps}
#: The step that proposes, and the review.
PROPOSES, REVIEW = "second", "review"
COUNTED = ("proposed", "approved", "rejected", "applied")
_T = TypeVar("_T")


def now(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


class Script:
    """Replaces a batcher: runs each record at once, over a blocking client."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        #: The last call, for a repetition after a lost reply.
        self.last: Record | None = None

    async def call(self, record: Record) -> Reply:
        self.last = record
        return self.send(record)

    def send(self, record: Record) -> Reply:
        args = WORKFLOW_SCRIPT.pack(JOBS, [record])
        try:
            raw = self._client.evalsha(WORKFLOW_SCRIPT.sha, *args)  # type: ignore[arg-type]
        except redis.exceptions.NoScriptError:
            raw = self._client.eval(WORKFLOW_SCRIPT.source, *args)  # type: ignore[arg-type]
        [reply] = [unpack(each) for each in raw]  # type: ignore[union-attr]
        assert isinstance(reply, Reply), reply
        return reply


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
class Sight:
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


def texts(raw: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in raw.items()}


def look(client: redis.Redis, job_id: str) -> Sight:
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
    return Sight(
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


def unchanged(before: Sight, after: Sight) -> bool:
    """True if nothing differs except the time of the last change."""
    records = []
    for sight in (before, after):
        records.append({k: v for k, v in sight.record.items() if k != "updated_ms"})
    return records[0] == records[1] and all(
        getattr(before, name) == getattr(after, name)
        for name in Sight.__dataclass_fields__
        if name != "record"
    )


def check(client: redis.Redis, job_id: str, sight: Sight, for_good: set[str]) -> None:
    """Check every invariant of one job; `for_good` are items changed without an undo."""
    check_events(sight)
    check_items(sight)
    check_undo(sight, for_good)
    check_steps(client, sight)
    pipe = client.pipeline(transaction=False)
    for key in (
        *(KEYS.job, KEYS.steps, KEYS.items, KEYS.states, KEYS.order, KEYS.events, KEYS.undo),
        *(KEYS.operations, KEYS.undoable, KEYS.data, KEYS.parts, KEYS.outbox),
    ):
        pipe.ttl(key(job_id))
    for name in STEPS:
        pipe.ttl(KEYS.step_order(job_id, name))
    assert -1 not in pipe.execute()  # every key expires


def check_events(sight: Sight) -> None:
    numbers = [entry_id for entry_id, _ in sight.events]
    assert numbers == [b"%d-0" % number for number in range(1, len(numbers) + 1)]
    assert int(sight.record["event_seq"]) == len(numbers)
    delivered = [codec.loads(entry)["seq"] for entry in sight.outbox]
    assert delivered == sorted(set(delivered))
    assert set(delivered) <= set(range(1, len(numbers) + 1))


def check_items(sight: Sight) -> None:
    proposals = [state for name, state in sight.items.items() if name.startswith("p_")]
    for status in COUNTED:
        counted = sum(1 for state in proposals if state.status == status)
        assert int(sight.record.get(status, 0)) == counted, status
    pending = sum(
        1
        for state in proposals
        if state.status == "approved" or (state.edited and state.status == "proposed")
    )
    assert int(sight.record.get("pending_changes", 0)) == pending
    assert all(number <= int(sight.record["item_seq"]) for number in sight.numbers.values())


def check_undo(sight: Sight, for_good: set[str]) -> None:
    stack, operations = sight.stack, sight.operations
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
        assert item in sight.items
        # From the last change on, each names the previous one.
        chain = [sight.undoable.get(item, "")]
        while chain[-1] in tokens:
            inverse = operations[chain[-1].lstrip("!")]["items"][item]
            chain.append(inverse.get("before", ""))
        if item in for_good:
            assert chain[:-1] == tokens[: len(chain) - 1]
        else:
            assert chain[:-1] == tokens
    assert set(sight.undoable) <= set(holders)


def check_steps(client: redis.Redis, sight: Sight) -> None:
    status, statuses = sight.record["status"], sight.statuses()
    assert (status == "completed") == (set(statuses) == {"complete"})
    running = [name for name in STEPS if sight.step(name) == "running"]
    waiting = [name for name in STEPS if sight.step(name) == "waiting_input"]
    assert len(running) + len(waiting) <= 1
    assert REVIEW not in running
    if running:
        [name] = running
        execution = sight.step(name, "execution")
        assert sight.running == f"{name} {execution}"
        core_jobs = [sight.step(name, "core_job"), *sight.step(name, "part_jobs").split()]
        mine = {core for core, each in sight.queued.items() if each[:2] == (name, execution)}
        assert mine == set(core_jobs)
        assert len(core_jobs) == int(sight.step(name, "parts") or 1)
        for core_job in core_jobs:
            assert client.hget(JOBS.job(core_job), "status") == b"queued"
        assert status == "running"
    else:
        assert sight.running == ""
    assert (status == "waiting_input") == (waiting == [REVIEW]) == sight.in_review
    if status == "running" and statuses[2:] == ["complete", "not_started", "not_started"]:
        assert sight.record.get("proposed", "0") == "0"  # otherwise the review waits again
    if status in ("failed", "cancelled", "completed"):
        assert sight.record["completed_ms"]
    elif status == "running":
        assert sight.record["completed_ms"] == ""
    # One core job per started execution, and per part except the first.
    executions = [each[:2] for each in sight.queued.values() if each[2] == ""]
    assert len(set(executions)) == len(executions)
    progress = 0.0
    for name in STEPS:
        if sight.step(name) == "complete":
            progress += WEIGHTS[name]
        elif sight.step(name) in ("running", "waiting_input"):
            done, total = (float(sight.step(name, what) or 0) for what in ("done", "total"))
            assert 0 <= done <= total or total == 0
            progress += WEIGHTS[name] * (done / total if total else 0)
    assert -1e-9 <= progress <= 1 + 1e-9


def store_over(client: redis.Redis) -> tuple[WorkflowStore, Script]:
    """A store whose coroutines never suspend."""
    script = Script(client)
    return WorkflowStore(client, JOBS, script), script  # type: ignore[arg-type]

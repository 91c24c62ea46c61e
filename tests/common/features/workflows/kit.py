"""Helpers for tests of the workflow scripts: a store with shortcuts, and reads from Redis."""

from __future__ import annotations

import os
import uuid
from typing import Any

from common import codec
from common.contracts.access import AccessKeys
from common.contracts.jobs import JobKeys
from common.contracts.rag import RagKeys
from common.contracts.workflow.keys import WorkflowKeys
from common.contracts.workflow.statuses import Action, DraftState, StepKind
from common.features.workflows.definitions import StepDefinition, WorkflowDefinition
from common.features.workflows.scripts import WORKFLOW_SCRIPT
from common.features.workflows.store import WorkflowStore
from common.features.workflows.types import (
    DecideCommand,
    ExecuteCommand,
    IdempotencyClaim,
    NewItem,
    NewWorkflow,
    StepExecution,
    StepIds,
    StepResult,
    Webhook,
    WorkflowAnswer,
    WorkflowOutcome,
)
from common.jobs.limits import AdmissionLimits
from common.redis.batching import ScriptBatcher
from common.redis.scripts import Record, Reply
from tests.support.backends import Backend

DATE = "20260214"
ADMISSION = AdmissionLimits("workers", 1000, 600)
EVENTS = ("job.created", "step.started", "step.completed", "job.completed")

#: Five steps: two workers' steps, one that proposes, a review, and one that settles.
FIVE = WorkflowDefinition(
    "five_v1",
    (
        StepDefinition("first", "f", "thing", 0.2, timeout_s=12.5, max_attempts=3),
        StepDefinition("second", "p", "proposal", 0.3, proposes=True),
        StepDefinition("review", "r", "review", 0.1, kind=StepKind.REVIEW, reviews="second"),
        StepDefinition("apply", "a", "apply", 0.3, draft=DraftState.SAVING, settles=True),
        StepDefinition("last", "m", "metric", 0.1, draft=DraftState.CLEAN),
    ),
)


def fresh_ids() -> StepIds:
    return StepIds(f"ex_{os.urandom(4).hex()}", str(uuid.uuid4()))


#: The tag of partition 0, which makes no difference on one server.
ONCE = "{0}:idempotency.wf:"


def once(key: str = "", print_: str = "same", claim_ms: int = 0) -> IdempotencyClaim:
    """The claim of a new request, or of one with this key."""
    return IdempotencyClaim(f"{ONCE}x:{key or uuid.uuid4()}", print_, 600, claim_ms)


def new_workflow(**changes: Any) -> NewWorkflow:
    fields: dict[str, Any] = {"definition": FIVE, "date": DATE, "ttl_s": 3600}
    return NewWorkflow(**{**fields, **changes})


def hooked(*events: str) -> Webhook:
    return Webhook("http://example.test/hook", events or EVENTS)


def proposals(count: int) -> StepResult:
    items = [NewItem(b'{"n":%d}' % number, "proposed", 0.5) for number in range(1, count + 1)]
    return StepResult(f"{count} proposals", items)


NOTHING = StepResult("nothing")


def limit_keys(flow: Flow) -> tuple[str, str]:
    """Keys with the state of a caller's limits."""
    names = AccessKeys(flow.keys.tag)
    return names.rate("k"), names.active("k")


class Doubting(ScriptBatcher):
    """Sends each record twice, as if the first reply was lost, and uses the second."""

    async def call(self, record: Record) -> Reply:
        await super().call(record)
        return await super().call(record)


class Flow:
    """A workflow store on one backend."""

    def __init__(
        self, backend: Backend, keys: JobKeys, batcher: type[ScriptBatcher] = ScriptBatcher
    ) -> None:
        self.backend = backend
        self.jobs = keys
        self.keys = WorkflowKeys(keys.tag)
        #: The namespace that jobs write to.
        self.rag = RagKeys("notes", tag=keys.tag)
        self.client = backend.client()
        self.batcher = batcher(backend.wire(), keys, WORKFLOW_SCRIPT, retry_for_s=5.0)
        self.store = WorkflowStore(self.client, keys, self.batcher)

    async def close(self) -> None:
        await self.batcher.close()

    async def create(self, **changes: Any) -> str:
        """Create a job; returns its id."""
        made = await self.store.create(new_workflow(**changes), once(), fresh_ids(), ADMISSION)
        assert made.answer is WorkflowAnswer.OK
        return str(made.facts["job_id"])

    async def execute(self, job_id: str, step: str, **changes: Any) -> WorkflowOutcome:
        return await self.store.execute(
            ExecuteCommand(job_id, step, **changes), once(), fresh_ids(), ADMISSION
        )

    async def start(self, job_id: str, step: str, **changes: Any) -> StepExecution:
        """Execute a step that starts at once."""
        outcome = await self.execute(job_id, step, **changes)
        assert outcome.answer is WorkflowAnswer.OK, outcome
        return StepExecution(job_id, outcome.facts["step"], outcome.facts["execution_id"])

    async def complete(
        self, running: StepExecution, result: StepResult = NOTHING
    ) -> WorkflowOutcome:
        return await self.store.complete(running, result, fresh_ids(), 600)

    async def run(self, job_id: str, step: str, result: StepResult = NOTHING) -> WorkflowOutcome:
        """Execute a step and complete it."""
        outcome = await self.complete(await self.start(job_id, step), result)
        assert outcome.answer is WorkflowAnswer.OK, outcome
        return outcome

    async def approve_all(self, job_id: str) -> None:
        wanted = DecideCommand(job_id, "a test", action=Action.APPROVE, token=os.urandom(4).hex())
        decided = await self.store.decide(wanted, once(), fresh_ids(), ADMISSION)
        assert decided.answer is WorkflowAnswer.OK, decided

    def started(self, job_id: str, outcome: WorkflowOutcome) -> StepExecution:
        """The execution that a completion has started."""
        went_on = outcome.facts["started"]
        return StepExecution(job_id, went_on["step"], went_on["execution_id"])

    # -- reads -----------------------------------------------------------------------------

    async def record(self, job_id: str) -> dict[str, str]:
        return _texts(await self.client.hgetall(self.keys.job(job_id)))

    async def step(self, job_id: str, name: str) -> dict[str, str]:
        fields = _texts(await self.client.hgetall(self.keys.steps(job_id)))
        start = f"{name}."
        return {key[len(start) :]: value for key, value in fields.items() if key.startswith(start)}

    async def statuses(self, job_id: str) -> list[str]:
        """Of all steps in order."""
        return [(await self.step(job_id, step.name))["status"] for step in FIVE.steps]

    async def events(self, job_id: str) -> list[tuple[str, str, Any]]:
        """Type, step and data of each."""
        found = await self.client.xrange(self.keys.events(job_id))
        numbers = [entry_id for entry_id, _ in found]
        assert numbers == [b"%d-0" % number for number in range(1, len(found) + 1)]
        return [
            (fields[b"type"].decode(), fields[b"step"].decode(), codec.loads(fields[b"data"]))
            for _, fields in found
        ]

    async def types(self, job_id: str) -> list[str]:
        return [kind for kind, _, _ in await self.events(job_id)]

    async def states(self, job_id: str) -> dict[str, str]:
        return _texts(await self.client.hgetall(self.keys.states(job_id)))

    async def ids(self, job_id: str, step: str = "") -> list[str]:
        """Item ids in order, of one step or of all."""
        key = self.keys.step_order(job_id, step) if step else self.keys.order(job_id)
        return [name.decode() for name in await self.client.zrange(key, 0, -1)]

    async def outbox(self, job_id: str) -> list[Any]:
        return [
            codec.loads(raw) for raw in await self.client.lrange(self.keys.outbox(job_id), 0, -1)
        ]

    async def queued(self) -> list[tuple[str, Any]]:
        """Core job id and arguments of every message on the queue."""
        entries = await self.client.xrange(self.jobs.queue)
        return [
            (fields[b"job_id"].decode(), codec.loads(fields[b"payload"])["args"])
            for _, fields in entries
        ]

    async def running(self) -> dict[str, str]:
        return _texts(await self.client.hgetall(self.keys.running))

    async def snapshot(self) -> dict[bytes, Any]:
        """Everything in Redis: equal snapshots mean that nothing was written."""
        found: dict[bytes, Any] = {}
        for key in sorted(await self.client.keys("*")):
            found[key] = await self.content(key)
        return found

    async def content(self, key: Any) -> Any:
        kind = await self.client.type(key)
        if kind == b"hash":
            return await self.client.hgetall(key)
        if kind == b"stream":
            return await self.client.xrange(key)
        if kind == b"set":
            return await self.client.smembers(key)
        if kind == b"list":
            return await self.client.lrange(key, 0, -1)
        if kind == b"zset":
            return await self.client.zrange(key, 0, -1, withscores=True)
        return await self.client.get(key)

    async def without_ttl(self) -> list[bytes]:
        """Keys of workflows without a TTL."""
        found = await self.client.keys("*workflow:*") + await self.client.keys("*idempotency*")
        immortal = {self.keys.deliveries.encode(), self.keys.reviews.encode()}
        return [key for key in found if key not in immortal and await self.client.ttl(key) < 0]


def _texts(raw: dict[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in raw.items()}

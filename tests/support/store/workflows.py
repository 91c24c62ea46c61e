"""Helpers for tests of the workflow scripts: a store with shortcuts, and reads from Redis."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any

from sluice.common import codec
from sluice.common.contracts.access import AccessKeys
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.rag import RagKeys
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.statuses import Action, DraftState, ItemStatus, StepKind
from sluice.common.features.workflows.definitions import (
    ReviewOptions,
    StepDefinition,
    WorkflowDefinition,
)
from sluice.common.features.workflows.effects import EffectStore
from sluice.common.features.workflows.scripts import WORKFLOW_SCRIPT
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import (
    DecideCommand,
    Decision,
    EditCommand,
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
from sluice.common.jobs.limits import AdmissionLimits
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.scripts import Record, Reply
from tests.support.servers import Backend
from tests.support.store.base import RedisHarness, texts

DATE = "20260214"
OK, ALREADY, LOST = WorkflowAnswer.OK, WorkflowAnswer.ALREADY, WorkflowAnswer.LOST
REFUSED, MISSING = WorkflowAnswer.REFUSED, WorkflowAnswer.MISSING
REUSED, FULL = WorkflowAnswer.REUSED, WorkflowAnswer.FULL
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


def approve(item_id: str, version: int = 0, note: str = "") -> Decision:
    return Decision(item_id, Action.APPROVE, version, note)


def reject(item_id: str, version: int = 0, note: str = "") -> Decision:
    return Decision(item_id, Action.REJECT, version, note)


def reset(item_id: str) -> Decision:
    return Decision(item_id, Action.RESET)


def proposed(*confidences: float) -> StepResult:
    """The result of a step that proposes one item per confidence."""
    items = [
        NewItem(b'{"n":%d}' % number, ItemStatus.PROPOSED.value, confidence)
        for number, confidence in enumerate(confidences, 1)
    ]
    return StepResult(f"{len(items)} proposals", items)


def proposals(count: int) -> StepResult:
    return proposed(*[0.5] * count)


NOTHING = StepResult("nothing")


def limit_keys(workflow: WorkflowHarness) -> tuple[str, str]:
    """Keys with the state of a caller's limits."""
    names = AccessKeys(workflow.keys.tag)
    return names.rate("k"), names.active("k")


class Doubting(ScriptBatcher):
    """Sends each record twice, as if the first reply was lost, and uses the second."""

    async def call(self, record: Record) -> Reply:
        await super().call(record)
        return await super().call(record)


class Impatient(ScriptBatcher):
    """Retries for a short time only."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "retry_for_s": 0.2})


class WorkflowHarness(RedisHarness):
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
        self.effects = EffectStore(self.client, self.store)

    async def make(
        self,
        request: IdempotencyClaim | None = None,
        ids: StepIds | None = None,
        admission: AdmissionLimits = ADMISSION,
        **changes: Any,
    ) -> WorkflowOutcome:
        new = new_workflow(**changes)
        return await self.store.create(new, request or once(), ids or fresh_ids(), admission)

    async def create(self, **changes: Any) -> str:
        """Create a job; returns its id."""
        made = await self.make(**changes)
        assert made.answer is OK
        return str(made.facts["job_id"])

    async def execute(
        self,
        job_id: str,
        step: str,
        request: IdempotencyClaim | None = None,
        ids: StepIds | None = None,
        admission: AdmissionLimits = ADMISSION,
        **changes: Any,
    ) -> WorkflowOutcome:
        wanted = ExecuteCommand(job_id, step, **changes)
        return await self.store.execute(wanted, request or once(), ids or fresh_ids(), admission)

    async def start(self, job_id: str, step: str, **changes: Any) -> StepExecution:
        """Execute a step that starts at once."""
        outcome = await self.execute(job_id, step, **changes)
        assert outcome.answer is OK, outcome
        return StepExecution(job_id, outcome.facts["step"], outcome.facts["execution_id"])

    async def complete(
        self, running: StepExecution, result: StepResult = NOTHING
    ) -> WorkflowOutcome:
        return await self.store.complete(running, result, fresh_ids(), 600)

    async def run(self, job_id: str, step: str, result: StepResult = NOTHING) -> WorkflowOutcome:
        """Execute a step and complete it."""
        outcome = await self.complete(await self.start(job_id, step), result)
        assert outcome.answer is OK, outcome
        return outcome

    async def approve_all(self, job_id: str) -> None:
        decided = await self.decide(job_id, action=Action.APPROVE)
        assert decided.answer is OK, decided

    def started(self, job_id: str, outcome: WorkflowOutcome) -> StepExecution:
        """The execution that a completion has started."""
        went_on = outcome.facts["started"]
        return StepExecution(job_id, went_on["step"], went_on["execution_id"])

    async def with_proposals(self, *confidences: float, **changes: Any) -> str:
        """A job with proposals whose review has not begun."""
        job_id = await self.create(**changes)
        await self.run(job_id, "first")
        await self.run(job_id, "second", proposed(*confidences or (0.5, 0.5, 0.5)))
        return job_id

    async def in_review(self, *confidences: float, **changes: Any) -> str:
        """A job that waits in its review."""
        job_id = await self.with_proposals(*confidences, **changes)
        entered = await self.execute(job_id, "review")
        assert entered.facts["waiting"]
        return job_id

    async def in_review_by_itself(self, review: ReviewOptions | None = None) -> str:
        """The same with `auto_advance`."""
        job_id = await self.create(auto_advance=True, review=review or ReviewOptions())
        first = await self.client.hget(self.keys.steps(job_id), "first.execution")
        running = StepExecution(job_id, "first", first.decode())
        second = self.started(job_id, await self.complete(running))
        outcome = await self.complete(second, proposed(0.5, 0.5))
        assert outcome.answer is OK
        return job_id

    async def decide(
        self,
        job_id: str,
        decisions: Sequence[Decision] = (),
        request: IdempotencyClaim | None = None,
        admission: Any = ADMISSION,
        **changes: Any,
    ) -> WorkflowOutcome:
        changes.setdefault("token", os.urandom(4).hex())
        wanted = DecideCommand(job_id, "somebody", decisions, **changes)
        return await self.store.decide(wanted, request or once(), fresh_ids(), admission)

    async def edit(
        self,
        job_id: str,
        item_id: str,
        version: int,
        request: IdempotencyClaim | None = None,
        admission: Any = ADMISSION,
        **changes: Any,
    ) -> WorkflowOutcome:
        fields: dict[str, Any] = {
            "payload": b'{"n":"new"}',
            "confidence": 0.75,
            "auto_approve": True,
            "who": "somebody",
            "token": os.urandom(4).hex(),
        }
        wanted = EditCommand(job_id, item_id, version=version, **{**fields, **changes})
        return await self.store.edit(wanted, request or once(), fresh_ids(), admission)

    async def undo(
        self, job_id: str, token: str, request: IdempotencyClaim | None = None
    ) -> WorkflowOutcome:
        return await self.store.undo(job_id, token, request or once())

    async def item(self, job_id: str, item_id: str) -> str:
        """Status, version, edited and confidence."""
        return (await self.states(job_id))[item_id]

    async def payload(self, job_id: str, item_id: str) -> Any:
        return codec.loads(await self.client.hget(self.keys.items(job_id), item_id))

    async def undoable(self, job_id: str) -> dict[str, str]:
        found = await self.client.hgetall(self.keys.undoable(job_id))
        return {name.decode(): token.decode() for name, token in found.items()}

    async def stack(self, job_id: str) -> list[str]:
        """Tokens of operations that can be undone; each operation exists."""
        tokens = await self.client.lrange(self.keys.undo(job_id), 0, -1)
        for token in tokens:
            assert await self.client.hexists(self.keys.operations(job_id), token)
        return [token.decode() for token in tokens]

    async def counters(self, job_id: str) -> tuple[int, ...]:
        """Numbers of proposed, approved, rejected, applied items, and of unapplied changes."""
        record = await self.record(job_id)
        names = ("proposed", "approved", "rejected", "applied", "pending_changes")
        return tuple(int(record.get(name, 0)) for name in names)

    # -- reads -----------------------------------------------------------------------------

    async def record(self, job_id: str) -> dict[str, str]:
        return texts(await self.client.hgetall(self.keys.job(job_id)))

    async def step(self, job_id: str, name: str) -> dict[str, str]:
        fields = texts(await self.client.hgetall(self.keys.steps(job_id)))
        start = f"{name}."
        return {key[len(start) :]: value for key, value in fields.items() if key.startswith(start)}

    async def step_has(self, job_id: str, name: str, **fields: str) -> None:
        step = await self.step(job_id, name)
        assert {field: step.get(field) for field in fields} == fields

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
        return texts(await self.client.hgetall(self.keys.states(job_id)))

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

    async def terms(self) -> dict[str, str]:
        """The ontology of the namespace."""
        return texts(await self.client.hgetall(self.rag.ontology))

    async def running(self) -> dict[str, str]:
        return texts(await self.client.hgetall(self.keys.running))

    async def without_ttl(self) -> list[bytes]:
        """Keys of workflows without a TTL."""
        found = await self.client.keys("*workflow:*") + await self.client.keys("*idempotency*")
        immortal = {self.keys.deliveries.encode(), self.keys.reviews.encode()}
        return [key for key in found if key not in immortal and await self.client.ttl(key) < 0]

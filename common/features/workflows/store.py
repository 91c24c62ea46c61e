"""WorkflowStore: one method per state change of a workflow job; the only code that writes one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.workflow.fields import StepField, WorkflowJobField
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.operations import WorkflowFact, WorkflowOperation
from sluice.common.contracts.workflow.statuses import Action, Selection
from sluice.common.features.workflows.scripts import (
    execution_arguments,
    flag,
    idempotency_arguments,
    start_arguments,
)
from sluice.common.features.workflows.types import (
    DecideCommand,
    Decision,
    EditCommand,
    ExecuteCommand,
    IdempotencyClaim,
    NewWorkflow,
    RunningStepJob,
    StepExecution,
    StepIds,
    StepResult,
    WorkflowAnswer,
    WorkflowOutcome,
)
from sluice.common.jobs.limits import AdmissionLimits, limit_keys
from sluice.common.jobs.store import read_reply
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.scripts import Argument, Record, Reply

#: Delay of a review that could not be checked, in milliseconds.
POSTPONE_MS: Final = 60_000

CallOperation = Callable[
    [WorkflowOperation, Sequence[str], Sequence[Argument], int],
    Coroutine[Any, Any, WorkflowOutcome],
]


class ItemOperations:
    """Operations on items, run through the store's `call`."""

    def __init__(self, client: Redis, keys: WorkflowKeys, call: CallOperation) -> None:
        self._client = client
        self._keys = keys
        self._call = call

    async def decide(
        self,
        command: DecideCommand,
        once: IdempotencyClaim,
        ids: StepIds,
        admission: AdmissionLimits,
    ) -> WorkflowOutcome:
        """Decide on proposals; the last decision of a waiting review ends it."""
        decisions = {decision.item_id: decision for decision in command.decisions}.values()
        least = command.min_confidence
        args = [*idempotency_arguments(once), *start_arguments(ids, admission)]
        args += (command.job_id, command.step, command.who, _operation(command, decisions))
        args += (command.token, command.note, flag(command.reviewing), flag(command.finalize))
        args += (command.action.value if command.action else "",)
        args += (command.status.value if command.status else "",)
        args += ("" if least is None else f"{least:.6f}",)
        for decision in decisions:
            args += (decision.item_id, decision.action.value, decision.version, decision.note)
        keys = (once.key, *limit_keys(admission))
        size = sum(len(decision.note) for decision in decisions)
        return await self._call(WorkflowOperation.DECIDE, keys, args, size)

    async def edit(
        self, command: EditCommand, once: IdempotencyClaim, ids: StepIds, admission: AdmissionLimits
    ) -> WorkflowOutcome:
        """Replace the payload of a proposal; if that decides the last one, its review ends."""
        args = [*idempotency_arguments(once), *start_arguments(ids, admission)]
        args += (command.job_id, command.item_id, command.payload)
        args += (command.version, f"{command.confidence:.6f}", flag(command.auto_approve))
        args += (command.who, command.token)
        keys = (once.key, *limit_keys(admission))
        return await self._call(WorkflowOperation.EDIT, keys, args, len(command.payload))

    async def undo(self, job_id: str, token: str, once: IdempotencyClaim) -> WorkflowOutcome:
        """Undo the last change of an item, or an operation without effects."""
        args = [*idempotency_arguments(once), job_id, token]
        return await self._call(WorkflowOperation.UNDO, (once.key,), args, 0)

    async def undo_with_effects(self, job_id: str, token: str) -> WorkflowOutcome:
        """Undo an operation with its effects; only a worker may."""
        args = ("", 0, 0, "", job_id, token)
        return await self._call(WorkflowOperation.UNDO, (), args, 0)

    async def expired_reviews(self, limit: int) -> list[str]:
        """Jobs whose review has expired, or was not checked for long."""
        now_ms = await self._now_ms()
        command: Any = self._client.zrangebyscore(self._keys.reviews, "-inf", now_ms, 0, limit)
        return [codec.decode_text(job_id) for job_id in await read_reply(command) or ()]

    async def postpone_review(self, job_id: str) -> None:
        """Check a review later that cannot be ended, so that it does not block the others."""
        later = {job_id: await self._now_ms() + POSTPONE_MS}
        await read_reply(self._client.zadd(self._keys.reviews, later, xx=True))

    async def _now_ms(self) -> int:
        seconds, microseconds = await read_reply(self._client.time()) or (0, 0)
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def expire_review(
        self, job_id: str, ids: StepIds, admission: AdmissionLimits
    ) -> WorkflowOutcome:
        """End a review that was not finished in time."""
        args = (job_id, *ids, admission.core_ttl_s)
        return await self._call(WorkflowOperation.EXPIRE_REVIEW, (), args, 0)


def _operation(command: DecideCommand, decisions: Collection[Decision]) -> str:
    """The name for `bulk.last_operation`, unless the caller gives one."""
    if command.operation:
        return command.operation
    if command.action is not None:
        is_filtered = command.status is not None or command.min_confidence is not None
        selection = Selection.FILTERED if is_filtered else Selection.ALL
        return f"{command.action.value}_{selection}"
    actions = {decision.action for decision in decisions}
    if not actions:  # only rejects undecided items
        return f"{Action.REJECT.value}_{Selection.FILTERED}"
    action = actions.pop().value if len(actions) == 1 else WorkflowOperation.DECIDE.value
    return f"{action}_{Selection.SELECTED}"


_ANSWERS: Final = {answer.value.encode(): answer for answer in WorkflowAnswer}
#: Facts that are lists; the scripts' JSON encodes an empty one as an object.
_LISTS: Final = {
    *(
        WorkflowFact.CORE_JOBS,
        WorkflowFact.ITEMS,
        WorkflowFact.APPLIED,
        WorkflowFact.FAILED,
        WorkflowFact.UNDONE,
    ),
}
#: Field of the last part, next to those of the parts, which are numbers.
_LAST_PART: Final = "last"


class WorkflowStore:
    """Writes workflow jobs. The batcher sends many writes in one call of the workflow script."""

    def __init__(
        self,
        client: Redis,
        jobs: JobKeys,
        batcher: ScriptBatcher,
        keys: WorkflowKeys | None = None,
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._batcher = batcher
        self.keys = keys or WorkflowKeys(jobs.tag)
        self._items = ItemOperations(client, self.keys, self.call)

    async def call(
        self,
        operation: WorkflowOperation,
        keys: Sequence[str],
        args: Sequence[Argument],
        size: int = 0,
    ) -> WorkflowOutcome:
        """Run one operation of the workflow script."""
        record = Record(operation.value, keys, args, size=size)
        return _outcome(await self._batcher.call(record))

    # -- gateway ---------------------------------------------------------------------------

    async def create(
        self, new: NewWorkflow, once: IdempotencyClaim, ids: StepIds, admission: AdmissionLimits
    ) -> WorkflowOutcome:
        """Create a job; in auto mode its first step starts.

        OK{job_id, started?}, REUSED, FULL{backlog}, RATE{wait_ms} or QUOTA{active}.
        """
        fields = _record_fields(new)
        definition = new.definition.to_json()
        args = [*idempotency_arguments(once), *start_arguments(ids, admission)]
        args += (new.date, definition, new.tenant, len(fields) // 2, *fields)
        for step, options in new.options.items():
            args += (step, options)
        size = len(definition) + sum(map(len, new.options.values()))
        return await self.call(
            WorkflowOperation.CREATE, (once.key, *limit_keys(admission)), args, size
        )

    async def execute(
        self,
        command: ExecuteCommand,
        once: IdempotencyClaim,
        ids: StepIds,
        admission: AdmissionLimits,
    ) -> WorkflowOutcome:
        """Start a step, or the first incomplete one on the way to it.

        OK{step, execution_id, core_job_id, started}, where `step` is the one that runs now; for a
        review OK{step, waiting, completed, pending}. MISSING (job), REUSED, FULL, RATE, QUOTA or
        REFUSED{code, execution_id?, step?, items?}.
        """
        options = b"" if command.options is None else command.options
        args = [*idempotency_arguments(once), *start_arguments(ids, admission), command.job_id]
        args += (command.step, flag(command.strict), flag(command.discard_decisions), options)
        return await self.call(
            WorkflowOperation.EXECUTE, (once.key, *limit_keys(admission)), args, len(options)
        )

    async def decide(
        self,
        command: DecideCommand,
        once: IdempotencyClaim,
        ids: StepIds,
        admission: AdmissionLimits,
    ) -> WorkflowOutcome:
        """OK{applied: [id…], failed: [{id, code, version?, status?}…], undo_token, pending,
        completed, started?: {step, execution_id}}; MISSING, REUSED, FULL, REFUSED{code}."""
        return await self._items.decide(command, once, ids, admission)

    async def edit(
        self, command: EditCommand, once: IdempotencyClaim, ids: StepIds, admission: AdmissionLimits
    ) -> WorkflowOutcome:
        """OK{item_id, version, status, undo_token, pending, completed, started?}, MISSING{what},
        REUSED, FULL, RATE, QUOTA or REFUSED{code, version, status}."""
        return await self._items.edit(command, once, ids, admission)

    async def undo(self, job_id: str, token: str, once: IdempotencyClaim) -> WorkflowOutcome:
        """OK{undone: [id…], token}; BEYOND{token} if a worker must do it; MISSING{what}, REUSED,
        REFUSED{code, items}."""
        return await self._items.undo(job_id, token, once)

    async def cancel(
        self, job_id: str, once: IdempotencyClaim, reason: str = ""
    ) -> WorkflowOutcome:
        """OK{core_jobs: [id…]} that may still run; ALREADY; MISSING; REUSED; REFUSED{code}."""
        args = [*idempotency_arguments(once), job_id, reason]
        return await self.call(WorkflowOperation.CANCEL, (once.key,), args)

    async def store_answer(self, once: IdempotencyClaim, status_code: int, body: bytes) -> None:
        """Store the answer to a request for its repetitions; ends its claim."""
        args = (once.fingerprint, once.ttl_s, status_code, body)
        await self.call(WorkflowOperation.STORE_ANSWER, (once.key,), args, len(body))

    async def forget_answer(self, once: IdempotencyClaim) -> None:
        """Remove the record of a request that had no effect, so that it can be repeated."""
        await read_reply(self._client.delete(once.key))

    # -- worker ----------------------------------------------------------------------------

    async def progress(self, running: StepExecution, done: int, total: int) -> WorkflowOutcome:
        """OK, ALREADY (it has ended) or LOST."""
        return await self.call(
            WorkflowOperation.PROGRESS, (), (*execution_arguments(running), done, total)
        )

    async def put(self, running: StepExecution, name: str, value: bytes) -> WorkflowOutcome:
        """Store data for later steps. OK, ALREADY or LOST."""
        args = (*execution_arguments(running), name, value)
        return await self.call(WorkflowOperation.PUT, (), args, len(value))

    async def split(
        self, running: StepExecution, core_jobs: Sequence[str], core_ttl_s: int
    ) -> WorkflowOutcome:
        """Split the step into one more part than `core_jobs`: the caller's own part is 0.

        OK{parts}, ALREADY{parts} or LOST.
        """
        args = (*execution_arguments(running), core_ttl_s, *core_jobs)
        return await self.call(WorkflowOperation.SPLIT, (), args)

    async def finish_part(self, running: StepExecution, part: int, value: bytes) -> WorkflowOutcome:
        """Store the result of a part. OK{left: missing parts}, ALREADY or LOST.

        Only the last part gets 0, even if it repeats the call.
        """
        args = (*execution_arguments(running), part, value, _LAST_PART)
        return await self.call(WorkflowOperation.COMPLETE_PART, (), args, len(value))

    async def complete(
        self, running: StepExecution, result: StepResult, ids: StepIds, core_ttl_s: int
    ) -> WorkflowOutcome:
        """Complete a step and, if the job is to continue, start the next one.

        OK{started?: {step, execution_id, core_job_id}}, ALREADY, LOST, MISSING or
        REFUSED{code, items?}: version_conflict, or step_lost if its effects were reverted.
        """
        args: list[Argument] = [*execution_arguments(running), *ids, core_ttl_s]
        args += (result.summary, result.errors, result.undo_token, len(result.items))
        for item in result.items:
            args += (item.payload, item.status, f"{item.confidence:.6f}")
        for change in result.changed:
            args += change
        size = sum(len(item.payload) for item in result.items)
        return await self.call(WorkflowOperation.COMPLETE, (), args, size)

    async def fail(
        self, running: StepExecution, errors: bytes, cancelled: bool = False
    ) -> WorkflowOutcome:
        """Fail a step. OK, ALREADY, LOST or MISSING."""
        args = (*running[:3], errors, flag(cancelled))
        return await self.call(WorkflowOperation.FAIL, (), args)

    async def undo_with_effects(self, job_id: str, token: str) -> WorkflowOutcome:
        """A worker's undo, with effects. OK{undone}, ALREADY, MISSING or REFUSED{code, items}."""
        return await self._items.undo_with_effects(job_id, token)

    # -- reconciler ------------------------------------------------------------------------

    async def running(self) -> list[RunningStepJob]:
        """All core jobs that a running step still needs, according to the workflows.

        For a split step these are its missing parts, or the last one, which joins them.
        """
        command: Any = self._client.hgetall(self.keys.running)
        found = [
            StepExecution(codec.decode_text(job_id), *_step_and_execution(value))
            for job_id, value in (await read_reply(command) or {}).items()
            if value.count(b" ") == 1
        ]
        if not found:
            return []
        pipe = self._client.pipeline(transaction=False)
        for each in found:
            fields = (StepField.CORE_JOB, StepField.PART_JOBS)
            names = [f"{each.step}.{field}" for field in fields]
            pipe.hmget(self.keys.steps(each.job_id), names)
        needed: list[RunningStepJob] = []
        for each, values in zip(found, await read_reply(pipe.execute(raise_on_error=False))):
            broken = isinstance(values, Exception)
            own, others = (b"", b"") if broken else (value or b"" for value in values)
            jobs = [codec.decode_text(own), *codec.decode_text(others).split()]
            needed += [
                RunningStepJob(each, jobs[at]) for at in await self._missing_parts(each, len(jobs))
            ]
        return needed

    async def _missing_parts(self, running: StepExecution, count: int) -> list[int]:
        """Parts whose core job is still needed."""
        if count == 1:
            return [0]
        fields = [f"{running.execution}:{part}" for part in (*range(count), _LAST_PART)]
        command: Any = self._client.hmget(self.keys.parts(running.job_id), fields)
        *come, last = await read_reply(command) or [None] * len(fields)
        if last is not None:
            return [min(codec.parse_int(last), count - 1)]
        return [part for part, value in enumerate(come) if value is None]

    async def expired_reviews(self, limit: int = 100) -> list[str]:
        """Jobs whose review has expired."""
        return await self._items.expired_reviews(limit)

    async def postpone_review(self, job_id: str) -> None:
        """Check a review later that cannot be ended, so that it does not block the others."""
        await self._items.postpone_review(job_id)

    async def expire_review(
        self, job_id: str, ids: StepIds, admission: AdmissionLimits
    ) -> WorkflowOutcome:
        """End a review that was not finished in time, by its options. OK, ALREADY, MISSING."""
        return await self._items.expire_review(job_id, ids, admission)


def _step_and_execution(value: bytes) -> tuple[str, str]:
    step, _, execution = codec.decode_text(value).partition(" ")
    return step, execution


def _outcome(reply: Reply) -> WorkflowOutcome:
    """Parse a script's reply: `value` is its answer, followed by facts and the stored answer."""
    raw, *remembered = reply.more
    answer = _ANSWERS[reply.value]  # type: ignore[index]
    facts = codec.loads(raw) or {}  # an empty table may be encoded as a list
    for name in _LISTS & facts.keys():
        facts[name] = facts[name] or []
    if not remembered:
        return WorkflowOutcome(answer, facts)
    replayed, claimed_ms, status_code, body = remembered
    return WorkflowOutcome(
        answer,
        facts,
        bool(replayed),
        codec.parse_int(claimed_ms) if replayed else 0,
        codec.parse_int(status_code or b"0"),
        body,
    )


def _record_fields(new: NewWorkflow) -> list[Argument]:
    """Fields of the record that the script does not set itself."""
    webhook = new.webhook
    fields: dict[str, Argument] = {
        WorkflowJobField.WORKFLOW: new.definition.name,
        WorkflowJobField.TTL_S: new.ttl_s,
        WorkflowJobField.IDEMPOTENCY_KEY: new.idempotency_key,
        WorkflowJobField.TENANT: new.tenant,
        WorkflowJobField.TAIL: new.tail,
        WorkflowJobField.METADATA: new.metadata,
        WorkflowJobField.NAMESPACE: new.namespace,
        WorkflowJobField.REVIEW: new.review.to_json(),
        WorkflowJobField.AUTO_ADVANCE: flag(new.auto_advance),
        WorkflowJobField.WEBHOOK_URL: webhook.url if webhook else "",
        WorkflowJobField.WEBHOOK_EVENTS: " ".join(webhook.events) if webhook else "",
    }
    return [argument for field, value in fields.items() for argument in (field, value)]

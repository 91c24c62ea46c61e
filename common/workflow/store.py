"""WorkflowStore: one method per state change of a workflow job; the only code that writes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis

from common import codec
from common.admission import limit_keys
from common.coalescer import Coalescer
from common.contracts.jobs import JobKeys
from common.contracts.workflow import Fact, JobHash, StepField, WorkflowKeys, WorkflowOperation
from common.scripts import Argument, Record, Reply
from common.store import read
from common.workflow.arguments import (
    admitted_arguments,
    flag,
    once_arguments,
    running_arguments,
)
from common.workflow.item_operations import ItemOperations
from common.workflow.types import (
    Admission,
    Decide,
    Edit,
    Execute,
    Ids,
    NewWorkflow,
    Once,
    Outcome,
    Running,
    StepResult,
    Stranded,
    WorkflowAnswer,
)

_ANSWERS: Final = {answer.value.encode(): answer for answer in WorkflowAnswer}
#: Lists among the facts; the scripts' JSON writes an empty one as an empty object.
_LISTS: Final = {
    fact.value for fact in (Fact.CORE_JOBS, Fact.ITEMS, Fact.APPLIED, Fact.FAILED, Fact.UNDONE)
}
#: Field of the part that came last, beside the parts' own, which are numbers.
_LAST_PART: Final = "last"


class WorkflowStore:
    """Writes travel through a coalescer of the workflow script, one call for many."""

    def __init__(
        self, client: Redis, jobs: JobKeys, coalescer: Coalescer, keys: WorkflowKeys | None = None
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._coalescer = coalescer
        self.keys = keys or WorkflowKeys(jobs.tag)
        self._items = ItemOperations(client, self.keys, self.call)

    async def call(
        self,
        operation: WorkflowOperation,
        keys: Sequence[str],
        args: Sequence[Argument],
        size: int = 0,
    ) -> Outcome:
        """Run one operation of the workflow script."""
        record = Record(operation.value, keys, args, size=size)
        return _outcome(await self._coalescer.call(record))

    # -- gateway ---------------------------------------------------------------------------

    async def create(self, new: NewWorkflow, once: Once, ids: Ids, admission: Admission) -> Outcome:
        """Make a job; in auto mode its first step starts.

        OK{job_id, started?}, REUSED, FULL{backlog}, RATE{wait_ms} or QUOTA{active}.
        """
        fields = _record_of(new)
        definition = new.definition.to_json()
        args = [*once_arguments(once), *admitted_arguments(ids, admission)]
        args += (new.date, definition, new.tenant, len(fields) // 2, *fields)
        for step, options in new.options.items():
            args += (step, options)
        size = len(definition) + sum(map(len, new.options.values()))
        return await self.call(
            WorkflowOperation.CREATE, (once.key, *limit_keys(admission)), args, size
        )

    async def execute(self, wanted: Execute, once: Once, ids: Ids, admission: Admission) -> Outcome:
        """Start a step, or the first incomplete one on the way to it.

        OK{step, execution_id, core_job_id, started}, where `step` is the one that runs now; for a
        review OK{step, waiting, completed, pending}. MISSING (job), REUSED, FULL, RATE, QUOTA or
        REFUSED{code, execution_id?, step?, items?}.
        """
        options = b"" if wanted.options is None else wanted.options
        args = [*once_arguments(once), *admitted_arguments(ids, admission), wanted.job_id]
        args += (wanted.step, flag(wanted.strict), flag(wanted.discard_decisions), options)
        return await self.call(
            WorkflowOperation.EXECUTE, (once.key, *limit_keys(admission)), args, len(options)
        )

    async def decide(self, wanted: Decide, once: Once, ids: Ids, admission: Admission) -> Outcome:
        """OK{applied: [id…], failed: [{id, code, version?, status?}…], undo_token, pending,
        completed, started?: {step, execution_id}}; MISSING, REUSED, FULL, REFUSED{code}."""
        return await self._items.decide(wanted, once, ids, admission)

    async def edit(self, wanted: Edit, once: Once, ids: Ids, admission: Admission) -> Outcome:
        """OK{item_id, version, status, undo_token, pending, completed, started?}, MISSING{what},
        REUSED, FULL, RATE, QUOTA or REFUSED{code, version, status}."""
        return await self._items.edit(wanted, once, ids, admission)

    async def undo(self, job_id: str, token: str, once: Once) -> Outcome:
        """OK{undone: [id…], token}; BEYOND{token} where a worker must; MISSING{what}, REUSED,
        REFUSED{code, items}."""
        return await self._items.undo(job_id, token, once)

    async def cancel(self, job_id: str, once: Once, reason: str = "") -> Outcome:
        """OK{core_jobs: [id…]} of what still runs; ALREADY; MISSING; REUSED; REFUSED{code}."""
        args = [*once_arguments(once), job_id, reason]
        return await self.call(WorkflowOperation.CANCEL, (once.key,), args)

    async def keep_answer(self, once: Once, status_code: int, body: bytes) -> None:
        """Remember what a request was answered, for its repetitions; ends its claim."""
        args = (once.fingerprint, once.ttl_s, status_code, body)
        await self.call(WorkflowOperation.ANSWER, (once.key,), args, len(body))

    async def forget_answer(self, once: Once) -> None:
        """The request may come for the first time again: nothing came of it."""
        await read(self._client.delete(once.key))

    # -- worker ----------------------------------------------------------------------------

    async def progress(self, running: Running, done: int, total: int) -> Outcome:
        """OK, ALREADY (it has ended) or LOST."""
        return await self.call(
            WorkflowOperation.PROGRESS, (), (*running_arguments(running), done, total)
        )

    async def put(self, running: Running, name: str, value: bytes) -> Outcome:
        """Leave something for later steps. OK, ALREADY or LOST."""
        args = (*running_arguments(running), name, value)
        return await self.call(WorkflowOperation.PUT, (), args, len(value))

    async def split(self, running: Running, core_jobs: Sequence[str], core_ttl_s: int) -> Outcome:
        """Run the step in one more part than `core_jobs`: the caller's own is 0.

        OK{parts}, ALREADY{parts} or LOST.
        """
        args = (*running_arguments(running), core_ttl_s, *core_jobs)
        return await self.call(WorkflowOperation.SPLIT, (), args)

    async def finish_part(self, running: Running, part: int, value: bytes) -> Outcome:
        """Leave what a part found. OK{left: parts that are not there yet}, ALREADY or LOST.

        Only the one that came last is told 0, however often it asks.
        """
        args = (*running_arguments(running), part, value, _LAST_PART)
        return await self.call(WorkflowOperation.PART, (), args, len(value))

    async def complete(
        self, running: Running, result: StepResult, ids: Ids, core_ttl_s: int
    ) -> Outcome:
        """End a step well and, where the job is to go on, start the next one.

        OK{started?: {step, execution_id, core_job_id}}, ALREADY, LOST, MISSING or
        REFUSED{code, items?}: version_conflict, or step_lost where its effects were taken back.
        """
        args: list[Argument] = [*running_arguments(running), *ids, core_ttl_s]
        args += (result.summary, result.errors, result.undo_token, len(result.items))
        for item in result.items:
            args += (item.payload, item.status, f"{item.confidence:.6f}")
        for change in result.changed:
            args += change
        size = sum(len(item.payload) for item in result.items)
        return await self.call(WorkflowOperation.COMPLETE, (), args, size)

    async def fail(self, running: Running, errors: bytes, cancelled: bool = False) -> Outcome:
        """End a step badly. OK, ALREADY, LOST or MISSING."""
        args = (*running[:3], errors, flag(cancelled))
        return await self.call(WorkflowOperation.FAIL, (), args)

    async def undo_beyond(self, job_id: str, token: str) -> Outcome:
        """The worker's undo: with effects. OK{undone}, ALREADY, MISSING or REFUSED{code, items}."""
        return await self._items.undo_beyond(job_id, token)

    # -- reconciler ------------------------------------------------------------------------

    async def running(self) -> list[Stranded]:
        """Every core job that a running step still needs, as far as the workflows know.

        Of a split step these are the parts that have not come, or the last one, who joins them.
        """
        command: Any = self._client.hgetall(self.keys.running)
        found = [
            Running(codec.text(job_id), *_step_and_execution(value))
            for job_id, value in (await read(command) or {}).items()
            if value.count(b" ") == 1
        ]
        if not found:
            return []
        pipe = self._client.pipeline(transaction=False)
        for each in found:
            fields = (StepField.CORE_JOB, StepField.PART_JOBS)
            names = [f"{each.step}.{field.value}" for field in fields]
            pipe.hmget(self.keys.steps(each.job_id), names)
        needed: list[Stranded] = []
        for each, values in zip(found, await read(pipe.execute(raise_on_error=False))):
            broken = isinstance(values, Exception)
            own, others = (b"", b"") if broken else (value or b"" for value in values)
            jobs = [codec.text(own), *codec.text(others).split()]
            needed += [
                Stranded(each, jobs[at]) for at in await self._missing_parts(each, len(jobs))
            ]
        return needed

    async def _missing_parts(self, running: Running, count: int) -> list[int]:
        """Parts whose core job is still needed."""
        if count == 1:
            return [0]
        fields = [f"{running.execution}:{part}" for part in (*range(count), _LAST_PART)]
        command: Any = self._client.hmget(self.keys.parts(running.job_id), fields)
        *come, last = await read(command) or [None] * len(fields)
        if last is not None:
            return [min(codec.integer(last), count - 1)]
        return [part for part, value in enumerate(come) if value is None]

    async def over(self, limit: int = 100) -> list[str]:
        """Jobs whose review has run out of time."""
        return await self._items.over(limit)

    async def put_off(self, job_id: str) -> None:
        """Look at a review later that cannot be ended, so that the others get their turn."""
        await self._items.put_off(job_id)

    async def time_out(self, job_id: str, ids: Ids, admission: Admission) -> Outcome:
        """End a review that nobody finished in time, as its options say. OK, ALREADY, MISSING."""
        return await self._items.time_out(job_id, ids, admission)


def _step_and_execution(value: bytes) -> tuple[str, str]:
    step, _, execution = codec.text(value).partition(" ")
    return step, execution


def _outcome(reply: Reply) -> Outcome:
    """What the script said; `value` is its answer, then come facts and what was remembered."""
    raw, *remembered = reply.more
    answer = _ANSWERS[reply.value]  # type: ignore[index]
    facts = codec.loads(raw) or {}  # an empty table may be written as a list, too
    for name in _LISTS & facts.keys():
        facts[name] = facts[name] or []
    if not remembered:
        return Outcome(answer, facts)
    replayed, claimed_ms, status_code, body = remembered
    return Outcome(
        answer,
        facts,
        bool(replayed),
        codec.integer(claimed_ms) if replayed else 0,
        codec.integer(status_code or b"0"),
        body,
    )


def _record_of(new: NewWorkflow) -> list[Argument]:
    """Fields of the record that do not come of the script itself."""
    webhook = new.webhook
    fields: dict[JobHash, Argument] = {
        JobHash.WORKFLOW: new.definition.name,
        JobHash.TTL_S: new.ttl_s,
        JobHash.IDEMPOTENCY_KEY: new.idempotency_key,
        JobHash.TENANT: new.tenant,
        JobHash.TAIL: new.tail,
        JobHash.METADATA: new.metadata,
        JobHash.NAMESPACE: new.namespace,
        JobHash.REVIEW: new.review.to_json(),
        JobHash.AUTO_ADVANCE: flag(new.auto_advance),
        JobHash.WEBHOOK_URL: webhook.url if webhook else "",
        JobHash.WEBHOOK_EVENTS: " ".join(webhook.events) if webhook else "",
    }
    return [argument for field, value in fields.items() for argument in (field.value, value)]

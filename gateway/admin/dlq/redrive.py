"""Redrives dead letters: creates a new job of one, or of many at a given rate."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sluice.common import codec
from sluice.common.access.record import tenant_tail
from sluice.common.access.store import KeyStore
from sluice.common.contracts.access import TAIL_DIGITS
from sluice.common.contracts.jobs import TASKS, QueueField, Task
from sluice.common.contracts.queue import Answer
from sluice.common.contracts.rag import UPLOAD_FIELD, upload_key
from sluice.common.errors import CorruptKey
from sluice.common.jobs.options import JobOptions
from sluice.common.jobs.queue import DeadLetter, DeadLetterRedrive
from sluice.common.jobs.store import read_reply, reply_int
from sluice.gateway.admin.dlq.listing import (
    DeadLetterFilter,
    dead_letter_not_found,
    iter_dead_letters,
)
from sluice.gateway.admin.dlq.models import (
    RedriveReport,
    RedriveRequest,
    ScheduledRedrive,
    SkippedRedrive,
)
from sluice.gateway.http.problems import Problem, problem_of
from sluice.gateway.jobs import refusals
from sluice.gateway.state import GatewayState

#: Code of requested dead letters beyond `limit`.
OVER_LIMIT = "over_limit"


async def redrive(
    state: GatewayState,
    letter_id: str,
    letter: DeadLetter | None,
    delay_ms: int = 0,
    *,
    dry_run: bool = False,
) -> str:
    """Create a job of the dead letter and delete the dead letter; idempotent.

    Returns the job's id; raises the problem of a refusal.
    """
    if letter is None:  # it may have been redriven before
        became = await state.queue.find_redriven_job(letter_id)
        if became is None or await state.store.get(became) is None:
            raise dead_letter_not_found()
        return became
    job_id = state.queue.redriven_job_id(letter_id, letter.job_id)
    task, payload = _task_and_payload(letter)
    if dry_run:
        return job_id
    options = (await inherited_options(letter, state.access.keys)).to_json()
    ttl_s = state.settings.job_ttl_s
    if task == Task.RAG.value and UPLOAD_FIELD in codec.parse_payload(payload.encode()):
        await _copy_upload(state, letter.job_id, job_id, ttl_s)
    wanted = DeadLetterRedrive(letter_id, job_id, task, payload, ttl_s, delay_ms, options)
    reply = await state.queue.redrive(wanted, state.schedule_limit)
    if reply.answer is Answer.MISSING:
        raise dead_letter_not_found()
    if reply.answer is Answer.LIMITED:
        raise await refusals.schedule_full(state, reply_int(reply))
    return job_id


async def _copy_upload(state: GatewayState, old: str, new: str, ttl_s: int) -> None:
    """Copy the document that the old job was to read, unless it was copied before."""
    tag = state.settings.keys.tag
    data = await read_reply(state.client.get(upload_key(old, tag)))
    if data is not None:
        await read_reply(state.client.set(upload_key(new, tag), data, ex=ttl_s))
    elif not await read_reply(state.client.exists(upload_key(new, tag))):
        raise Problem(422, "not_redrivable", "The uploaded document has expired. Upload it again.")


async def inherited_options(letter: DeadLetter, keys: KeyStore) -> JobOptions:
    """Tenant, tools and lane of the new job: those of the original job.

    If the dead letter does not have them, because the job had expired, the job id identifies the
    tenant. Then the new job may use tools only if no key of the tenant is restricted in its tools.
    """
    if letter.options is not None:
        known = JobOptions.from_json(letter.options)
        return JobOptions(tenant=known.tenant, tools=known.tools, lane=known.lane)
    records = await keys.list()
    tails = {tenant_tail(record.tenant): record.tenant for record in records if record.tenant}
    tenant = tails.get(letter.job_id[-TAIL_DIGITS:], "")
    narrowed = any(record.tools is not None for record in records if record.tenant == tenant)
    return JobOptions(tenant=tenant or None, tools=() if narrowed else None)


def _task_and_payload(letter: DeadLetter) -> tuple[str, str]:
    """Task and payload of the message; raises a problem if it has no valid ones."""
    original = letter.message_fields()
    task = original.get(QueueField.TASK)
    payload = original.get(QueueField.PAYLOAD)
    if isinstance(task, str) and task in TASKS and isinstance(payload, str):
        try:
            if isinstance(codec.loads(payload.encode()), dict):
                return task, payload
        except ValueError:
            pass
    raise Problem(
        422,
        "not_redrivable",
        "The message has no known task, or its payload is not a JSON object. Submit a new job "
        "instead.",
    )


class RedriveRun:
    """Redrives many dead letters. Each job is delayed a little more than the one before, so that
    they are put on the queue at the requested rate."""

    def __init__(self, state: GatewayState, wanted: RedriveRequest) -> None:
        self._state = state
        self._wanted = wanted
        self._report = RedriveReport(redriven=[], skipped=[], dry_run=wanted.dry_run)
        self._redriven_count = 0
        #: Code for the remaining dead letters, once the run has stopped.
        self._stopped = ""

    async def run(self) -> RedriveReport:
        """Redrive until all are done, the limit is reached or the schedule is full."""
        refused = 0
        async for letter_id, letter in self._candidates():
            if len(self._report.redriven) + refused >= self._wanted.effective_limit:
                if self._wanted.ids is None:
                    break
                self._skip(letter_id, OVER_LIMIT)
            elif self._stopped:
                refused += 1
                self._skip(letter_id, self._stopped)
            else:
                await self._redrive_one(letter_id, letter)
                refused += bool(self._stopped)
        return self._report

    async def _candidates(self) -> AsyncIterator[tuple[str, DeadLetter | None]]:
        queue, wanted = self._state.queue, self._wanted
        if wanted.ids is None:
            choice = DeadLetterFilter(wanted.reason, wanted.fingerprint)
            async for letter in iter_dead_letters(queue):
                if choice.matches(letter):
                    yield letter.id, letter
        else:
            for letter_id in dict.fromkeys(wanted.ids):
                yield letter_id, None if self._stopped else await queue.dead_letter(letter_id)

    async def _redrive_one(self, letter_id: str, letter: DeadLetter | None) -> None:
        delay_ms = (
            round(self._redriven_count * 1000 / self._wanted.rate_per_s)
            if letter is not None
            else 0
        )
        try:
            job_id = await redrive(
                self._state, letter_id, letter, delay_ms, dry_run=self._wanted.dry_run
            )
        except (Problem, CorruptKey) as error:
            problem = problem_of(error)
            assert problem is not None
            if problem.status == 429:
                self._stopped = problem.code
            self._skip(letter_id, problem.code)
            return
        self._redriven_count += letter is not None
        self._report.redriven.append(
            ScheduledRedrive(job_id=job_id, dead_letter_id=letter_id, delay_ms=delay_ms)
        )

    def _skip(self, letter_id: str, code: str) -> None:
        self._report.skipped.append(SkippedRedrive(dead_letter_id=letter_id, code=code))

"""One BullMQ queue: adds, reads and removes jobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sluice.common import codec
from sluice.common.contracts.bullmq import BullAnswer, BullKeys
from sluice.common.errors import CorruptKey
from sluice.common.features.bullmq import package
from sluice.common.features.bullmq.job import BullJob
from sluice.common.features.bullmq.scripts import ADD, GET, REMOVE, ScriptRunner, wrap_script

#: States of jobs that have not ended.
UNFINISHED_STATES: Final = (
    "wait",
    "paused",
    "prioritized",
    "delayed",
    "active",
    "waiting-children",
)
#: In the order that the package's state script expects.
STATES: Final = (
    *("completed", "failed", "delayed", "active"),
    *("wait", "paused", "waiting-children", "prioritized"),
)
#: Milliseconds that a cancel request is kept for a worker that is disconnected.
CANCEL_TTL_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True)
class NewBullJob:
    """A job to add, with its options in BullMQ's format."""

    name: str
    #: JSON.
    data: bytes
    opts: dict[str, Any] = field(default_factory=dict)
    #: '' lets BullMQ assign a number.
    job_id: str = ""
    #: Fingerprint of a request with an Idempotency-Key, and how long it is remembered.
    fingerprint: str = ""
    remembered_ms: int = 0


class AddResult(NamedTuple):
    """The result of adding a job; `job_id` may be an existing job that takes its place."""

    answer: BullAnswer
    job_id: str = ""
    #: Number of unfinished jobs if the queue is full.
    unfinished: int = 0


#: States stored as lists; the others are sorted sets.
_LIST_STATES: Final = ("wait", "paused", "active")


class BullQueue:
    """Adds, reads and removes jobs, each with one script call."""

    def __init__(self, runner: ScriptRunner, keys: BullKeys) -> None:
        self._runner = runner
        self.keys = keys

    async def add(self, job: NewBullJob, most_unfinished: int = 0) -> AddResult:
        """Add a job to the queue; raises StoreUnavailable."""
        keys = self.keys
        call = package.build_add_call(
            keys.prefix, keys.queue, job.name, job.data, job.opts, job.job_id
        )
        deduplication = (job.opts.get("deduplication") or {}).get("id", "")
        own_keys = [
            keys.job(job.job_id) if job.job_id else keys.meta,
            keys.idempotency(job.job_id) if job.fingerprint else keys.meta,
            keys.deduplication(deduplication) if deduplication else keys.meta,
            *(keys.key(state) for state in UNFINISHED_STATES),
        ]
        own_args: list[str | int] = [
            *("1" if job.job_id else "0", job.fingerprint, job.remembered_ms),
            *("1" if deduplication else "0", most_unfinished),
        ]
        answer, value = await self._runner.run(
            wrap_script(ADD, call.script),
            [*call.keys, *own_keys],
            [*call.args, *own_args],
            # With an id and an idempotency key a repeated call is the same job, otherwise another.
            repeatable=bool(job.job_id and job.fingerprint),
        )
        found = BullAnswer(codec.decode_text(answer))
        if found is BullAnswer.FULL:
            return AddResult(found, unfinished=int(value))
        if found is BullAnswer.FAILED:
            raise CorruptKey(f"BullMQ rejected the job: code {value}")
        return AddResult(found, codec.decode_text(value))

    async def get(self, job_id: str) -> BullJob | None:
        """A job; None if it does not exist. Raises StoreUnavailable."""
        answer, *rest = await self._runner.run(
            wrap_script(GET, package.STATE_SCRIPT),
            [*map(self.keys.key, STATES), self.keys.job(job_id)],
            [job_id],
            repeatable=True,
        )
        if BullAnswer(codec.decode_text(answer)) is BullAnswer.MISSING:
            return None
        state, flat = rest
        fields = dict(zip(flat[::2], flat[1::2]))
        return BullJob.from_hash(self.keys.queue, job_id, codec.decode_text(state), fields)

    async def remove(self, job_id: str) -> BullAnswer:
        """Remove a job, or request the end of a running one; raises StoreUnavailable."""
        keys = self.keys
        [answer] = await self._runner.run(
            wrap_script(REMOVE, package.REMOVE_SCRIPT),
            [keys.job(job_id), keys.key("repeat"), keys.cancel(job_id), keys.lock(job_id)],
            [job_id, 1, keys.key(""), job_id, keys.control, CANCEL_TTL_MS],
            repeatable=False,
        )
        return BullAnswer(codec.decode_text(answer))

    async def depths(self) -> dict[str, int]:
        """Number of jobs per state; keys of the wrong type are left out. Raises errors of Redis."""
        commands = ("LLEN" if state in _LIST_STATES else "ZCARD" for state in STATES)
        counts = await asyncio.gather(
            *(
                self._runner.command(command, self.keys.key(state))
                for command, state in zip(commands, STATES)
            )
        )
        return {state: count for state, count in zip(STATES, counts) if isinstance(count, int)}

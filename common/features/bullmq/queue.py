"""One queue of BullMQ, for whoever feeds it and looks at its jobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from common import codec
from common.contracts.bullmq import BullAnswer, BullKeys
from common.errors import CorruptKey
from common.features.bullmq import package
from common.features.bullmq.job import BullJob
from common.features.bullmq.scripts import ADD, GET, REMOVE, ScriptRunner, wrap_script

#: Where jobs are that have not ended.
UNFINISHED_STATES: Final = (
    "wait",
    "paused",
    "prioritized",
    "delayed",
    "active",
    "waiting-children",
)
#: In the order in which the package's script for it wants them.
STATES: Final = (
    *("completed", "failed", "delayed", "active"),
    *("wait", "paused", "waiting-children", "prioritized"),
)
#: How long a worker that is cut off may still find out that its job is to end.
CANCEL_TTL_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True)
class NewBullJob:
    """A job to add; its options as BullMQ spells them."""

    name: str
    #: JSON.
    data: bytes
    opts: dict[str, Any] = field(default_factory=dict)
    #: '' lets BullMQ number it.
    job_id: str = ""
    #: Of the request, where an Idempotency-Key makes it one of a kind; for how long that holds.
    fingerprint: str = ""
    remembered_ms: int = 0


class AddResult(NamedTuple):
    """What became of a new job; `job_id` may be another's that stands for it."""

    answer: BullAnswer
    job_id: str = ""
    #: Jobs that have not ended, where there is no room.
    unfinished: int = 0


#: Places that are lists; the others are sorted sets.
_LIST_STATES: Final = ("wait", "paused", "active")


class BullQueue:
    """Adds, looks, removes; each in one script."""

    def __init__(self, runner: ScriptRunner, keys: BullKeys) -> None:
        self._runner = runner
        self.keys = keys

    async def add(self, job: NewBullJob, most_unfinished: int = 0) -> AddResult:
        """Put a job into the queue; raises StoreUnavailable."""
        keys = self.keys
        call = package.build_add_call(
            keys.prefix, keys.queue, job.name, job.data, job.opts, job.job_id
        )
        deduplication = (job.opts.get("deduplication") or {}).get("id", "")
        own_keys = [
            keys.job(job.job_id) if job.job_id else keys.meta,
            keys.idempotency(job.job_id) if job.fingerprint else keys.meta,
            keys.deduplication(deduplication) if deduplication else keys.meta,
            *(keys.key(place) for place in UNFINISHED_STATES),
        ]
        own_args: list[str | int] = [
            *("1" if job.job_id else "0", job.fingerprint, job.remembered_ms),
            *("1" if deduplication else "0", most_unfinished),
        ]
        answer, value = await self._runner.run(
            wrap_script(ADD, call.script),
            [*call.keys, *own_keys],
            [*call.args, *own_args],
            # Sent again under the same id and key it is the same job; without one, another.
            repeatable=bool(job.job_id and job.fingerprint),
        )
        found = BullAnswer(codec.decode_text(answer))
        if found is BullAnswer.FULL:
            return AddResult(found, unfinished=int(value))
        if found is BullAnswer.FAILED:
            raise CorruptKey(f"BullMQ does not take the job: code {value}")
        return AddResult(found, codec.decode_text(value))

    async def get(self, job_id: str) -> BullJob | None:
        """A job as it stands; None where there is none. Raises StoreUnavailable."""
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
        """Take a job out, or ask for the end of one that runs; raises StoreUnavailable."""
        keys = self.keys
        [answer] = await self._runner.run(
            wrap_script(REMOVE, package.REMOVE_SCRIPT),
            [keys.job(job_id), keys.key("repeat"), keys.cancel(job_id), keys.lock(job_id)],
            [job_id, 1, keys.key(""), job_id, keys.control, CANCEL_TTL_MS],
            repeatable=False,
        )
        return BullAnswer(codec.decode_text(answer))

    async def depths(self) -> dict[str, int]:
        """How many jobs are where; what is of another type is left out. Raises what Redis does."""
        commands = ("LLEN" if place in _LIST_STATES else "ZCARD" for place in STATES)
        counts = await asyncio.gather(
            *(
                self._runner.command(command, self.keys.key(place))
                for command, place in zip(commands, STATES)
            )
        )
        return {place: count for place, count in zip(STATES, counts) if isinstance(count, int)}

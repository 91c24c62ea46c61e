"""The store's part about items: decisions, edits, undoing, reviews that run out of time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final

from redis.asyncio import Redis

from common import codec
from common.admission import limit_keys
from common.contracts.workflow import Action, Selection, WorkflowKeys, WorkflowOperation
from common.scripts import Argument
from common.store import read
from common.workflow.arguments import admitted_arguments, flag, once_arguments
from common.workflow.types import Admission, Decide, Decision, Edit, Ids, Once, Outcome

#: How long a review waits that could not be looked at.
PUT_OFF_MS: Final = 60_000

Call = Callable[
    [WorkflowOperation, Sequence[str], Sequence[Argument], int], Coroutine[Any, Any, Outcome]
]


class ItemOperations:
    """Runs its operations through the store's `call`."""

    def __init__(self, client: Redis, keys: WorkflowKeys, call: Call) -> None:
        self._client = client
        self._keys = keys
        self._call = call

    async def decide(self, wanted: Decide, once: Once, ids: Ids, admission: Admission) -> Outcome:
        """Decide on proposals; the last decision of a review that waits ends it."""
        decisions = {decision.item_id: decision for decision in wanted.decisions}.values()
        least = wanted.min_confidence
        args = [*once_arguments(once), *admitted_arguments(ids, admission)]
        args += (wanted.job_id, wanted.step, wanted.who, _operation(wanted, decisions))
        args += (wanted.token, wanted.note, flag(wanted.reviewing), flag(wanted.finalize))
        args += (wanted.action.value if wanted.action else "",)
        args += (wanted.status.value if wanted.status else "",)
        args += ("" if least is None else f"{least:.6f}",)
        for decision in decisions:
            args += (decision.item_id, decision.action.value, decision.version, decision.note)
        keys = (once.key, *limit_keys(admission))
        size = sum(len(decision.note) for decision in decisions)
        return await self._call(WorkflowOperation.DECIDE, keys, args, size)

    async def edit(self, wanted: Edit, once: Once, ids: Ids, admission: Admission) -> Outcome:
        """Give a proposal another payload; where that decides the last one, its review ends."""
        args = [*once_arguments(once), *admitted_arguments(ids, admission)]
        args += (wanted.job_id, wanted.item_id, wanted.payload)
        args += (wanted.version, f"{wanted.confidence:.6f}", flag(wanted.auto_approve))
        args += (wanted.who, wanted.token)
        keys = (once.key, *limit_keys(admission))
        return await self._call(WorkflowOperation.EDIT, keys, args, len(wanted.payload))

    async def undo(self, job_id: str, token: str, once: Once) -> Outcome:
        """Take back the last change of an item, or an operation without effects."""
        args = [*once_arguments(once), job_id, token]
        return await self._call(WorkflowOperation.UNDO, (once.key,), args, 0)

    async def undo_beyond(self, job_id: str, token: str) -> Outcome:
        """The same with effects; only a worker may."""
        args = ("", 0, 0, "", job_id, token)
        return await self._call(WorkflowOperation.UNDO, (), args, 0)

    async def over(self, limit: int) -> list[str]:
        """Jobs whose review has run out of time, or has not been looked at for long."""
        now_ms = await self._now_ms()
        command: Any = self._client.zrangebyscore(self._keys.reviews, "-inf", now_ms, 0, limit)
        return [codec.text(job_id) for job_id in await read(command) or ()]

    async def put_off(self, job_id: str) -> None:
        """Look at a review later that cannot be ended, so that the others get their turn."""
        later = {job_id: await self._now_ms() + PUT_OFF_MS}
        await read(self._client.zadd(self._keys.reviews, later, xx=True))

    async def _now_ms(self) -> int:
        seconds, microseconds = await read(self._client.time()) or (0, 0)
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def time_out(self, job_id: str, ids: Ids, admission: Admission) -> Outcome:
        """End a review that nobody finished in time."""
        args = (job_id, *ids, admission.core_ttl_s)
        return await self._call(WorkflowOperation.TIME_OUT, (), args, 0)


def _operation(wanted: Decide, decisions: Collection[Decision]) -> str:
    """As `bulk.last_operation` calls it, unless the caller does."""
    if wanted.operation:
        return wanted.operation
    if wanted.action is not None:
        passes = wanted.status is not None or wanted.min_confidence is not None
        selection = Selection.FILTERED if passes else Selection.ALL
        return f"{wanted.action.value}_{selection.value}"
    actions = {decision.action for decision in decisions}
    if not actions:  # what is undecided, by its status, is rejected
        return f"{Action.REJECT.value}_{Selection.FILTERED.value}"
    action = actions.pop().value if len(actions) == 1 else WorkflowOperation.DECIDE.value
    return f"{action}_{Selection.SELECTED.value}"

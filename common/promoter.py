"""Puts scheduled jobs on the queue when they are due. Every gateway and every worker runs one.

Whoever comes first does it: the script makes sure that a job gets there once.
"""

from __future__ import annotations

import asyncio
import logging

from common import crashpoints
from common.contracts.scripts import Answer
from common.crashpoints import CrashPoint
from common.errors import SluiceError
from common.queue import QueueStore
from common.scripts import Reply

log = logging.getLogger(__name__)

#: Jobs promoted by one call.
PAGE = 64
#: Looks this often, whatever the schedule says: somebody else may have added a job.
LONGEST_WAIT_S = 0.5
_PROGRESS = (Answer.OK, Answer.TERMINAL, Answer.MISSING)


class Promoter:
    """Looks at the schedule's beginning now and then, and as soon as its first job is due."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    async def run(self) -> None:
        """Promote until canceled; trouble is left to the next round."""
        while True:
            wait_s = LONGEST_WAIT_S
            try:
                wait_s = await self.run_once()
            except SluiceError as error:
                log.warning("scheduled jobs wait: %s", error)
            except Exception:
                log.exception("scheduled jobs wait after an unexpected fault")
            await asyncio.sleep(wait_s)

    async def run_once(self) -> float:
        """Promote what is due; returns seconds until the next look."""
        due = await self._store.due(PAGE)
        if not due.job_ids:
            next_s = LONGEST_WAIT_S if due.next_ms is None else due.next_ms / 1000
            return min(next_s, LONGEST_WAIT_S)
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.BEFORE_PROMOTE)
        outcomes = await self._store.promote(due.job_ids)
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_PROMOTE)
        if not any(isinstance(o, Reply) and o.answer in _PROGRESS for o in outcomes):
            return LONGEST_WAIT_S  # others were faster, or something is odd: no haste
        faults = [outcome for outcome in outcomes if isinstance(outcome, SluiceError)]
        if faults:
            raise faults[0]
        return 0.0

"""Keeps the locks of running jobs, from a thread that no handler can starve."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import redis
from redis.exceptions import RedisError

from common import codec
from common.jobs.store import Lease
from common.redis.connection import TRANSIENT_ERRORS
from common.redis.scripts import run_packed_blocking
from worker.bullmq.script_client import ScriptClient
from worker.bullmq.scripts import QueueScripts

log = logging.getLogger(__name__)

#: A renewal that failed is tried again so soon.
RETRY_S: Final = 0.5
#: Locks renewed by one call of the script.
MOST_PER_CALL: Final = 1000


@dataclass(slots=True)
class _HeldLock:
    lease: Lease
    on_lost: Callable[[], object]
    on_cancel: Callable[[], object]
    good_until: float


class LockKeeper:
    """Renews all locks of a queue in one call.

    A job whose lock is somebody else's or gone, or could not be renewed for its whole length, is
    reported once: its handler must stop, and may write nothing. The same look finds jobs that
    somebody wants to end.
    """

    def __init__(
        self, client: redis.Redis, scripts: QueueScripts, lock_ms: int, renew_ms: int
    ) -> None:
        self._client = client
        self._scripts = scripts
        self._lock_s = lock_ms / 1000
        self._renew_s = renew_ms / 1000
        self._held: dict[str, _HeldLock] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self._wake = threading.Event()
        self._good_round_at = time.monotonic()
        self._thread: threading.Thread | None = None
        #: How many locks were lost so far.
        self.lost = 0

    @property
    def healthy(self) -> bool:
        """Whether everything held was renewed within the life of a lock, if only nothing."""
        return time.monotonic() - self._good_round_at <= self._lock_s

    def hold(
        self,
        lease: Lease,
        on_lost: Callable[[], object],
        on_cancel: Callable[[], object] = lambda: None,
    ) -> None:
        """Keep a lock until it is dropped; the callbacks are called from the thread."""
        held = _HeldLock(lease, on_lost, on_cancel, time.monotonic() + self._lock_s)
        with self._lock:
            self._held[lease.job_id] = held

    def drop(self, lease: Lease) -> None:
        """The attempt is over. The same job may be ours again by now, under another lease."""
        with self._lock:
            held = self._held.get(lease.job_id)
            if held is not None and held.lease is lease:
                del self._held[lease.job_id]

    def good_until(self, job_id: str) -> float:
        """Until when a job is surely ours, as `time.monotonic` tells it."""
        held = self._held.get(job_id)
        return time.monotonic() + RETRY_S if held is None else held.good_until

    def start(self) -> None:
        self._good_round_at = time.monotonic()
        self._thread = threading.Thread(target=self.run, name="lock-keeper", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look now: something may have been missed."""
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread and close its connection."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=self._lock_s)
        self._client.close()

    def run(self) -> None:
        pause_s = self._renew_s
        while True:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._stopping:
                return
            try:
                pause_s = self._renew_s if self.run_once() else min(RETRY_S, self._renew_s)
            except Exception:
                log.exception("locks were not renewed after an unexpected fault; trying again")

    def run_once(self) -> bool:
        """Renew everything held, and report what is lost. Whether Redis had an answer."""
        began = time.monotonic()
        with self._lock:
            held = list(self._held.values())
        batches = [held[at : at + MOST_PER_CALL] for at in range(0, len(held), MOST_PER_CALL)]
        answers = [self._renew(batch) for batch in batches]
        answered = all(answers)
        if answered:
            self._good_round_at = began
        return answered

    def _renew(self, batch: list[_HeldLock]) -> bool:
        sent = time.monotonic()
        try:
            gone, wanted = self._ask([entry.lease for entry in batch])
        except (redis.RedisError, *TRANSIENT_ERRORS) as error:
            log.warning("redis: %s; %d locks not renewed", error, len(batch))
            for entry in batch:
                if time.monotonic() > entry.good_until:
                    self._lose(entry)
            return False
        for entry, cancel in zip(batch, wanted):
            if entry.lease.job_id in gone:
                self._lose(entry)
                continue
            entry.good_until = sent + self._lock_s
            if cancel:
                entry.on_cancel()
        return True

    def _lose(self, entry: _HeldLock) -> None:
        with self._lock:
            if self._held.get(entry.lease.job_id) is not entry:
                return  # it ended while we asked, which takes its lock away
            del self._held[entry.lease.job_id]
        self.lost += 1
        entry.on_lost()

    def _ask(self, leases: list[Lease]) -> tuple[set[str], list[Any]]:
        """The ids of locks that are lost, and for each whether its job is to be canceled."""
        ids = [lease.job_id for lease in leases]
        script, given = self._scripts.renew(ids, [lease.token for lease in leases])
        gone = run_packed_blocking(self._client, script, given)
        names = (self._scripts.keys.cancel(job_id) for job_id in ids)
        wanted = self._client.execute_command("MGET", *names)  # type: ignore[no-untyped-call]
        return {codec.decode_text(job_id) for job_id in gone}, wanted


class StallChecker:
    """Looks at a queue's active jobs in every interval; one look does for all workers.

    A job is marked by the first look and put back by the second, unless its lock was renewed
    between them. The first look comes at once, so that a restarted worker loses no interval.
    """

    def __init__(self, client: ScriptClient, scripts: QueueScripts, interval_ms: int) -> None:
        self._client = client
        self._scripts = scripts
        self._interval_s = interval_ms / 1000
        #: Jobs that were put back by our looks.
        self.stalled = 0

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except (RedisError, *TRANSIENT_ERRORS) as error:
                log.warning("redis: %s; stalled jobs are looked for later", error)
            except Exception:
                log.exception("looking for stalled jobs failed unexpectedly")
            await asyncio.sleep(self._interval_s)

    async def run_once(self) -> list[str]:
        """Look once; returns the jobs that were put back."""
        reply = await self._client.call(self._scripts.check_stalled())
        stalled = [codec.decode_text(job_id) for job_id in reply]
        self.stalled += len(stalled)
        for job_id in stalled:
            log.warning("job %s of %s lost its worker", job_id, self._scripts.keys.queue)
        return stalled

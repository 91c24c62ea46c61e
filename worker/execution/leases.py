"""Keeps the leases of running jobs alive, from a thread that no handler can starve."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import redis

from common.contracts.jobs import JobKeys
from common.contracts.queue import Answer
from common.errors import SluiceError
from common.jobs.scripts import CORE_SCRIPT
from common.jobs.store import Lease, WorkerIdentity, renewal_record
from common.process import crashpoints
from common.process.crashpoints import CrashPoint
from common.redis.batching import MAX_RECORDS
from common.redis.connection import TRANSIENT_ERRORS
from common.redis.scripts import Record, Reply, run_packed_blocking, unpack
from common.text import plural

log = logging.getLogger(__name__)

_RENEWED = (Answer.OK, Answer.CANCELING)


@dataclass(slots=True)
class _HeldLease:
    lease: Lease
    on_lost: Callable[[], object]
    on_cancel: Callable[[], object]
    good_until: float


class LeaseKeeper:
    """Renews every held lease at a third of its length.

    A lease that is lost, or that could not be renewed for its whole length, is reported once:
    its holder must stop, because another worker may own the job by now. A holder whose job is to
    be canceled is told so each time, in case nobody else could tell it.
    """

    def __init__(self, client: redis.Redis, keys: JobKeys, worker: WorkerIdentity) -> None:
        self._client = client
        self._keys = keys
        self._worker = worker
        self._lease_s = worker.lease_ms / 1000
        self._held: dict[str, _HeldLease] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self._good_round_at = time.monotonic()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def healthy(self) -> bool:
        """Whether everything held was renewed within the length of a lease, if only nothing."""
        return time.monotonic() - self._good_round_at <= self._lease_s

    def hold(
        self,
        lease: Lease,
        on_lost: Callable[[], object],
        on_cancel: Callable[[], object] = lambda: None,
    ) -> None:
        """Keep a lease alive until it is dropped; the callbacks are called from the thread."""
        good_until = time.monotonic() + self._lease_s
        with self._lock:
            self._held[lease.token] = _HeldLease(lease, on_lost, on_cancel, good_until)

    def drop(self, lease: Lease) -> None:
        with self._lock:
            self._held.pop(lease.token, None)

    def start(self) -> None:
        self._good_round_at = time.monotonic()
        self._thread = threading.Thread(target=self.run, name="lease-keeper", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Renew now: something may have happened that only a renewal tells."""
        self._wake.set()

    def request_stop(self) -> None:
        """Let the thread end; `stop` must follow."""
        self._stopping = True
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread and close its connection."""
        self.request_stop()
        if self._thread is not None:
            self._thread.join(timeout=self._lease_s)
        self._client.close()

    def run(self) -> None:
        while True:
            self._wake.wait(self._lease_s / 3)
            self._wake.clear()
            if self._stopping:
                return
            try:
                self.run_once()
            except Exception:
                log.exception("lease renewal failed unexpectedly; trying again")

    def run_once(self) -> None:
        """Renew everything held, and report what is lost."""
        began = time.monotonic()
        with self._lock:
            held = list(self._held.values())
        batches = [held[start : start + MAX_RECORDS] for start in range(0, len(held), MAX_RECORDS)]
        answered = [self._renew(batch) for batch in batches]
        if all(answered):
            self._good_round_at = began

    def _renew(self, batch: list[_HeldLease]) -> bool:
        """Whether Redis had an answer for each of them."""
        sent = time.monotonic()
        crashpoints.reach(CrashPoint.BEFORE_RENEW)
        try:
            replies = self._call(
                [renewal_record(entry.lease, self._keys, self._worker) for entry in batch]
            )
        except (redis.RedisError, *TRANSIENT_ERRORS) as error:
            log.warning("redis: %s; %s not renewed", error, plural(len(batch), "lease"))
            replies = [SluiceError(str(error))] * len(batch)
        crashpoints.reach(CrashPoint.AFTER_RENEW)
        for entry, reply in zip(batch, replies):
            if isinstance(reply, Reply) and reply.answer in _RENEWED:
                # Counted from before the call, so that we give up before Redis does.
                entry.good_until = sent + self._lease_s
                if reply.answer is Answer.CANCELING:
                    entry.on_cancel()
            elif isinstance(reply, Reply) or time.monotonic() > entry.good_until:
                self.drop(entry.lease)
                entry.on_lost()
        return all(isinstance(reply, Reply) for reply in replies)

    def _call(self, records: list[Record]) -> list[Reply | SluiceError]:
        args = CORE_SCRIPT.pack(self._keys, records)
        raw = run_packed_blocking(self._client, CORE_SCRIPT, args)
        return [unpack(reply) for reply in raw]

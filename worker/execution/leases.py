"""Renews the leases of running jobs from a thread that no handler can starve."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

import redis

from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.queue import Answer
from sluice.common.errors import SluiceError
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import Lease, WorkerIdentity, renewal_record
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.common.redis.batching import MAX_RECORDS
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.scripts import Reply, run_packed_blocking, unpack
from sluice.common.text import plural

log = logging.getLogger(__name__)


class Renewal(Enum):
    """What Redis answered to the renewal of one lease."""

    RENEWED = auto()
    #: Renewed, and a cancel of the job was requested.
    CANCELING = auto()
    #: Another attempt owns the job, or it ended or expired.
    LOST = auto()
    #: No answer for this lease: Redis failed to run the renewal.
    UNKNOWN = auto()


class Renewer(Protocol):
    """Renews leases in Redis. The keeper calls it from its thread."""

    @property
    def noun(self) -> str:
        """The name of one lease in log lines and in the name of the thread."""

    @property
    def batch_size(self) -> int:
        """How many leases one call of `renew` takes at most."""

    def key(self, lease: Lease) -> str:
        """Key under which a lease is held. A new lease replaces one with the same key."""

    def renew(self, leases: Sequence[Lease]) -> list[Renewal]:
        """Renew a batch; one result per lease. Raises RedisError or a network error."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True)
class _HeldLease:
    lease: Lease
    on_lost: Callable[[], object]
    on_cancel: Callable[[], object]
    #: `time.monotonic()` until which Redis keeps the lease for certain.
    good_until: float


class LeaseKeeper:
    """Holds the leases of running attempts and renews them until they are dropped.

    A lease that is lost, or that could not be renewed for its whole length, is reported once. Its
    attempt must stop then, because another worker may own the job. A requested cancel is reported
    at every renewal, in case the message on the control channel was missed.
    """

    def __init__(
        self,
        renewer: Renewer,
        lease_s: float,
        renew_s: float | None = None,
        retry_s: float | None = None,
    ) -> None:
        """`renew_s` is the interval between renewals, by default a third of `lease_s`; `retry_s`
        is the interval after a renewal that failed, by default the same."""
        self._renewer = renewer
        self._key = renewer.key
        self._lease_s = lease_s
        self._renew_s = lease_s / 3 if renew_s is None else renew_s
        self._retry_s = self._renew_s if retry_s is None else retry_s
        self._held: dict[str, _HeldLease] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self._good_round_at = time.monotonic()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        #: How many leases were reported as lost so far.
        self.lost = 0

    @property
    def healthy(self) -> bool:
        """True if a round of renewals succeeded within the last lease length. A round without any
        lease counts."""
        return time.monotonic() - self._good_round_at <= self._lease_s

    def hold(
        self,
        lease: Lease,
        on_lost: Callable[[], object],
        on_cancel: Callable[[], object] = lambda: None,
    ) -> None:
        """Renew a lease until it is dropped. The callbacks run in the keeper's thread."""
        held = _HeldLease(lease, on_lost, on_cancel, time.monotonic() + self._lease_s)
        with self._lock:
            self._held[self._key(lease)] = held

    def drop(self, lease: Lease) -> None:
        """Stop renewing. The same job may be held again under another lease, which stays."""
        key = self._key(lease)
        with self._lock:
            held = self._held.get(key)
            if held is not None and held.lease is lease:
                del self._held[key]

    def good_until(self, key: str) -> float | None:
        """`time.monotonic()` until which Redis keeps a lease for certain; None if not held."""
        held = self._held.get(key)
        return None if held is None else held.good_until

    def start(self) -> None:
        self._good_round_at = time.monotonic()
        name = f"{self._renewer.noun}-keeper"
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Renew now, because messages on the control channel may have been missed."""
        self._wake.set()

    def request_stop(self) -> None:
        """Let the thread end, without waiting for it; `stop` must follow."""
        self._stopping = True
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread and close its connection."""
        self.request_stop()
        if self._thread is not None:
            self._thread.join(timeout=self._lease_s)
        self._renewer.close()

    def run(self) -> None:
        pause_s = self._renew_s
        while True:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._stopping:
                return
            try:
                pause_s = self._renew_s if self.run_once() else self._retry_s
            except Exception:
                log.exception("%s renewal failed unexpectedly; retrying", self._renewer.noun)

    def run_once(self) -> bool:
        """Renew every held lease; True if Redis had an answer for each."""
        began = time.monotonic()
        with self._lock:
            held = list(self._held.values())
        size = self._renewer.batch_size
        batches = [held[start : start + size] for start in range(0, len(held), size)]
        answers = [self._renew(batch) for batch in batches]
        answered = all(answers)
        if answered:
            self._good_round_at = began
        return answered

    def _renew(self, batch: list[_HeldLease]) -> bool:
        sent = time.monotonic()
        crashpoints.reach(CrashPoint.BEFORE_RENEW)
        try:
            renewals = self._renewer.renew([entry.lease for entry in batch])
        except (redis.RedisError, *TRANSIENT_ERRORS) as error:
            count = plural(len(batch), self._renewer.noun)
            log.warning("redis: %s; %s not renewed", error, count)
            renewals = [Renewal.UNKNOWN] * len(batch)
        crashpoints.reach(CrashPoint.AFTER_RENEW)
        for entry, renewal in zip(batch, renewals):
            if renewal in _RENEWED:
                # Counted from before the call, so that the worker gives up before Redis does.
                entry.good_until = sent + self._lease_s
                if renewal is Renewal.CANCELING:
                    entry.on_cancel()
            elif renewal is Renewal.LOST or time.monotonic() > entry.good_until:
                self._lose(entry)
        return Renewal.UNKNOWN not in renewals

    def _lose(self, entry: _HeldLease) -> None:
        key = self._key(entry.lease)
        with self._lock:
            if self._held.get(key) is not entry:
                return  # the attempt ended during the call, which removes its lease
            del self._held[key]
        self.lost += 1
        entry.on_lost()


_RENEWED: Final = (Renewal.RENEWED, Renewal.CANCELING)
_RENEWALS: Final = {Answer.OK: Renewal.RENEWED, Answer.CANCELING: Renewal.CANCELING}


class JobLeaseRenewer:
    """Renews the leases of jobs from `jobs:stream`."""

    noun: Final = "lease"
    batch_size: Final = MAX_RECORDS

    def __init__(self, client: redis.Redis, keys: JobKeys, worker: WorkerIdentity) -> None:
        self._client = client
        self._keys = keys
        self._worker = worker

    def key(self, lease: Lease) -> str:
        return lease.token

    def renew(self, leases: Sequence[Lease]) -> list[Renewal]:
        records = [renewal_record(lease, self._keys, self._worker) for lease in leases]
        args = CORE_SCRIPT.pack(self._keys, records)
        raw = run_packed_blocking(self._client, CORE_SCRIPT, args)
        return [_parse_renewal(unpack(reply)) for reply in raw]

    def close(self) -> None:
        self._client.close()


def _parse_renewal(reply: Reply | SluiceError) -> Renewal:
    if isinstance(reply, SluiceError):
        return Renewal.UNKNOWN
    return _RENEWALS.get(reply.answer, Renewal.LOST)

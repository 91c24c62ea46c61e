"""The model of a random history of jobs, and the invariants in Redis after every step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import redis

from sluice.common.contracts.jobs import CHECKPOINT_PREFIX
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import Lease, WorkerIdentity
from tests.support.histories.machine import JOBS as KEYS
from tests.support.histories.machine import History

GROUP = "workers"
TERMINAL = (b"done", b"error", b"canceled")
STATUSES = {b"queued", b"running", *TERMINAL}
#: Maximum number of running jobs of the limited task.
LIMITED_TASK, SLOTS = "plan", 2
RUNNING = KEYS.running(LIMITED_TASK)
#: Longer than any history takes.
FAR_MS = 600_000


@dataclass
class Model:
    """The expected state of one job."""

    task: str = "chat"
    most: int = 1_000_000
    #: The last attempt, and how many were released.
    attempts: int = 0
    released: int = 0
    #: Token of the running attempt; None between attempts and after the end.
    owner: tuple[int, str] | None = None
    #: Token of the attempt released last, while no other has begun, and its message.
    handed_back: tuple[int, str] | None = None
    message_id: str = ""
    #: Whether the owner's lease is live.
    live: bool = False
    #: Its lease had expired when it was renewed, and others may have taken its slot.
    revived: bool = False
    canceling: bool = False
    #: Whether its next attempt is delayed.
    waits: bool = False
    ended: bool = False
    #: Its keys are gone.
    expired: bool = False
    #: Number of events written per token.
    emitted: dict[str, int] = field(default_factory=dict)
    #: Checkpoints.
    saved: dict[str, bytes] = field(default_factory=dict)

    @property
    def limited(self) -> bool:
        return self.task == LIMITED_TASK

    @property
    def is_over(self) -> bool:
        return self.ended or self.expired

    def end(self) -> None:
        self.ended, self.live, self.owner, self.handed_back = True, False, None, None

    def hand_back(self) -> None:
        self.handed_back, self.owner, self.live = self.owner, None, False


class View(NamedTuple):
    """Everything that the invariants need, read at once."""

    jobs: dict[str, tuple[dict[bytes, bytes], list[Any], dict[bytes, bytes]]]
    queue: list[Any]
    pending: set[bytes]
    group: dict[str, Any]
    scheduled: set[bytes]
    #: Members of the running set whose time is not over.
    running: set[str]

    def undelivered(self) -> set[bytes]:
        last = _number(self.group["last-delivered-id"])
        return {entry_id for entry_id, _ in self.queue if _number(entry_id) > last}


def _number(entry_id: bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in entry_id.split(b"-"))


class JobInvariants(History):
    """A queue, its jobs and their model; subclasses define the operations."""

    lua = CORE_SCRIPT

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.models: dict[str, Model] = {}
        #: Scheduled jobs, and whether they are due.
        self.schedule: dict[str, bool] = {}
        #: Members of the running set that count.
        self.slots: set[str] = set()
        self.letters = 0
        client.xgroup_create(KEYS.queue, GROUP, "0", mkstream=True)

    # -- talking to Redis ----------------------------------------------------------------------

    def next(self, prefix: str) -> str:
        return f"{prefix}-{next(self.numbers)}"

    def identity(self, consumer: str = "a") -> WorkerIdentity:
        return WorkerIdentity(GROUP, consumer, FAR_MS, 300, 1_000_000)

    def job_keys(self, job_id: str, lease: Lease | None = None) -> list[str]:
        keys = [KEYS.job(job_id), KEYS.events(job_id), KEYS.lease(job_id)]
        return [*keys, lease.limited_by] if lease is not None and lease.limited_by else keys

    def traces(self, job_id: str) -> Any:
        """Everything that a write on the job would change."""
        pipe = self.client.pipeline(transaction=False)
        pipe.hgetall(KEYS.job(job_id))
        pipe.xrange(KEYS.events(job_id))
        pipe.hgetall(KEYS.lease(job_id))
        return pipe.execute()

    @contextlib.contextmanager
    def unchanged(self, job_id: str) -> Iterator[None]:
        """A repetition in its block writes nothing."""
        before = self.traces(job_id), self.client.xlen(KEYS.queue)
        yield
        assert (self.traces(job_id), self.client.xlen(KEYS.queue)) == before

    def owns(self, lease: Lease) -> bool:
        model = self.models[lease.job_id]
        return not model.expired and model.owner == (lease.attempt, lease.token)

    def deliveries(self, message_id: str) -> int:
        """Delivery count of a message; 0 if it is not pending."""
        found = self.client.xpending_range(KEYS.queue, GROUP, message_id, message_id, 1)
        return int(found[0]["times_delivered"]) if found else 0

    # -- invariants ----------------------------------------------------------------------------

    def read_view(self) -> View:
        pipe = self.client.pipeline(transaction=False)
        pipe.xrange(KEYS.queue)
        pipe.xpending_range(KEYS.queue, GROUP, "-", "+", 1000)
        pipe.xinfo_groups(KEYS.queue)
        pipe.zrange(KEYS.scheduled, 0, -1)
        pipe.zrangebyscore(RUNNING, "2", "+inf")
        alive = [job_id for job_id, model in self.models.items() if not model.expired]
        for job_id in alive:
            pipe.hgetall(KEYS.job(job_id))
            pipe.xrange(KEYS.events(job_id))
            pipe.hgetall(KEYS.lease(job_id))
        queue, pending, [group], scheduled, running, *rest = pipe.execute()
        return View(
            dict(zip(alive, zip(rest[::3], rest[1::3], rest[2::3]))),
            queue,
            {entry["message_id"] for entry in pending},
            group,
            set(scheduled),
            {member.decode() for member in running},
        )

    def check(self) -> None:
        view = self.read_view()
        for job_id, (record, events, lease) in view.jobs.items():
            self._one_end_last_and_equal_to_the_status(job_id, record, events)
            self._checkpoints_exist_until_the_end(job_id, lease)
        self._an_ack_implies_an_end(view)
        self._unfinished_jobs_can_be_reached(view)
        self._every_key_expires()
        self._a_job_is_queued_once(view)
        self._the_task_limit_holds(view)
        self._the_lag_is_known(view)
        assert self.client.xlen(KEYS.dead_letters) == self.letters
        assert view.scheduled == {job_id.encode() for job_id in self.schedule}

    def _one_end_last_and_equal_to_the_status(  # I2
        self, job_id: str, record: dict[bytes, bytes], events: list[Any]
    ) -> None:
        model, status = self.models[job_id], record[b"status"]
        types = [fields[b"type"] for _, fields in events]
        ends = [type for type in types if type in TERMINAL]
        assert status in STATUSES
        assert ends == ([status] if status in TERMINAL else [])
        assert not ends or types[-1] == ends[0]
        assert all(set(fields) == {b"type", b"ts", b"step", b"data"} for _, fields in events)
        assert len(record) == 9
        assert model.ended == (status in TERMINAL)
        assert (model.owner is not None) == (status == b"running")

    def _checkpoints_exist_until_the_end(self, job_id: str, lease: dict[bytes, bytes]) -> None:
        model, prefix = self.models[job_id], CHECKPOINT_PREFIX.encode()
        saved = {
            field.removeprefix(prefix).decode(): value
            for field, value in lease.items()
            if field.startswith(prefix)
        }
        assert saved == ({} if model.ended else model.saved)

    def _an_ack_implies_an_end(self, view: View) -> None:  # I3
        undelivered = view.undelivered()
        for entry_id, fields in view.queue:
            if entry_id not in view.pending and entry_id not in undelivered:
                model = self.models[fields[b"job_id"].decode()]
                assert model.is_over

    def _unfinished_jobs_can_be_reached(self, view: View) -> None:  # I1, I5
        kept = view.pending | view.undelivered()
        reachable = {fields[b"job_id"] for entry_id, fields in view.queue if entry_id in kept}
        for job_id in view.jobs:
            if not self.models[job_id].ended:
                assert job_id.encode() in reachable | view.scheduled, job_id

    def _every_key_expires(self) -> None:  # I7
        keys = [*self.client.keys("job:*"), *self.client.keys("idempotency*")]
        keys += self.client.keys(RUNNING)
        pipe = self.client.pipeline(transaction=False)
        for key in keys:
            pipe.ttl(key)
        assert all(ttl_s > 0 for ttl_s in pipe.execute()), keys

    def _a_job_is_queued_once(self, view: View) -> None:  # I8
        queued = [fields[b"job_id"] for _, fields in view.queue]
        assert len(queued) == len(set(queued))
        assert not set(queued) & view.scheduled

    def _the_task_limit_holds(self, view: View) -> None:
        live = [
            job_id
            for job_id, (_, _, lease) in view.jobs.items()
            if self.models[job_id].limited and int(lease.get(b"deadline_ms", 0)) > 1
        ]
        revived = [job_id for job_id in live if self.models[job_id].revived]
        assert len(live) <= SLOTS + len(revived)
        assert set(live) <= view.running == self.slots
        assert all(self.models[job_id].live for job_id in live)

    def _the_lag_is_known(self, view: View) -> None:
        if "lag" in view.group:
            assert view.group["lag"] == len(view.undelivered())

"""Random histories over the scripts: whatever the order of events, the invariants hold.

Workers post, read, begin, emit, renew and finish; they die, stall past their lease, wake up as
zombies and repeat calls whose replies were lost. The model knows which attempt is the current
one; Redis must agree after every step. Invariants are those of the reliability notes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from common.contracts.jobs import DeadReason, JobKeys
from common.contracts.scripts import Answer
from common.scripts import SOURCE, Record, Reply, pack, unpack
from common.store import Lease, WorkerIdentity, renewal
from tests.backends import REAL, RealServer

KEYS = JobKeys()
GROUP = "workers"
IDENTITY = (GROUP, "a", 60_000, 300, 1_000_000)
TERMINAL = (b"done", b"error", b"canceled")
STATUSES = {b"queued", b"running", *TERMINAL}


class JobHistory(RuleBasedStateMachine):
    """Any number of workers, one queue."""

    messages = Bundle("messages")
    leases = Bundle("leases")
    jobs = Bundle("jobs")

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        client.flushdb()
        self.client = client
        self.script = client.register_script(SOURCE)
        self.number = 0
        #: job id -> (attempt, token) that owns it now, None before the first and after the end
        self.owner: dict[str, tuple[int, str] | None] = {}
        self.expired: set[str] = set()
        self.emitted: dict[tuple[str, str], int] = {}
        client.xgroup_create(KEYS.queue, GROUP, "0", mkstream=True)

    # -- talking to Redis ----------------------------------------------------------------------

    def call(self, *records: Record) -> list[Any]:
        count, *rest = pack(KEYS, records)
        replies = self.script(keys=rest[: int(count)], args=rest[int(count) :])
        return [unpack(reply) for reply in replies]

    def one(self, record: Record) -> Reply:
        # Twice in one call, half of the time, would hide whether a repeat changes the answer.
        [reply] = self.call(record)
        assert isinstance(reply, Reply), reply
        return reply

    def job_keys(self, job_id: str) -> list[str]:
        return [KEYS.job(job_id), KEYS.events(job_id), KEYS.lease(job_id)]

    def traces(self, job_id: str) -> Any:
        return (
            self.client.hgetall(KEYS.job(job_id)),
            self.client.xrange(KEYS.events(job_id)),
            self.client.hgetall(KEYS.lease(job_id)),
        )

    def status(self, job_id: str) -> bytes | None:
        return self.client.hget(KEYS.job(job_id), "status")

    def owns(self, lease: Lease) -> bool:
        current = self.owner.get(lease.job_id)
        return lease.job_id not in self.expired and current == (lease.attempt, lease.token)

    # -- rules ---------------------------------------------------------------------------------

    def enqueue(self, job_id: str) -> Reply:
        args = [job_id, "chat", b"{}", 600, GROUP, 10**6, 0, ""]
        keys = [KEYS.job(job_id), KEYS.events(job_id)]
        return self.one(Record("enqueue", keys, args))

    @rule(target=jobs)
    def post(self) -> str:
        self.number += 1
        job_id = f"job-{self.number}"
        self.owner[job_id] = None
        assert self.enqueue(job_id).answer is Answer.CREATED
        return job_id

    @rule(job_id=jobs)
    def post_again_after_a_lost_reply(self, job_id: str) -> None:
        if job_id in self.expired:
            return
        before = self.traces(job_id), self.client.xlen(KEYS.queue)
        assert self.enqueue(job_id).answer is Answer.CREATED
        assert (self.traces(job_id), self.client.xlen(KEYS.queue)) == before

    @rule(target=messages, consumer=st.sampled_from("ab"), count=st.integers(1, 3))
    def read(self, consumer: str, count: int) -> Any:
        reply = self.client.xreadgroup(GROUP, consumer, {KEYS.queue: ">"}, count=count)
        entries = reply[0][1] if reply else []
        return multiple(*((entry_id.decode(), fields) for entry_id, fields in entries))

    @rule(consumer=st.sampled_from("ab"), message=messages)
    def claim(self, consumer: str, message: Any) -> None:
        self.client.xclaim(KEYS.queue, GROUP, consumer, 0, [message[0]])

    def begin_record(self, job_id: str, message_id: str, consumer: str, token: str) -> Record:
        args = [job_id, message_id, token, "", ""]
        return Record(
            "begin", self.job_keys(job_id), args, (GROUP, consumer, 60_000, 300, 1_000_000)
        )

    @rule(target=leases, message=messages, consumer=st.sampled_from("ab"), twice=st.booleans())
    def begin(self, message: Any, consumer: str, twice: bool) -> Any:
        message_id, fields = message
        job_id = fields[b"job_id"].decode()
        self.number += 1
        token = f"t{self.number}"
        before, status = self.traces(job_id), self.status(job_id)
        held = self.owner[job_id]
        deadline = int(self.client.hget(KEYS.lease(job_id), "deadline_ms") or 0)
        reply = self.one(self.begin_record(job_id, message_id, consumer, token))
        if twice:  # the reply was lost
            repeated = self.one(self.begin_record(job_id, message_id, consumer, token))
            same = (int(reply.value or 0) == int(repeated.value or 0)) or (
                reply.answer is Answer.BUSY
            )
            assert repeated.answer is reply.answer
            assert same
        if job_id in self.expired:
            assert reply.answer is Answer.MISSING
        elif status in TERMINAL:
            assert reply.answer is Answer.TERMINAL
        elif held is not None and deadline > 1:
            assert reply.answer is Answer.BUSY
            assert self.traces(job_id) == before
        else:
            assert reply.answer is Answer.RUN
            attempt = int(reply.value or 0)
            assert attempt == (held[0] if held else 0) + 1
            self.owner[job_id] = (attempt, token)
            assert len(self.client.xrange(KEYS.events(job_id))) == len(before[1]) + 1
            return Lease(job_id, message_id, attempt, token)
        return multiple()

    @rule(lease=leases)
    def let_the_lease_run_out(self, lease: Lease) -> None:
        if self.owns(lease):
            self.client.hset(KEYS.lease(lease.job_id), "deadline_ms", "1")

    @rule(lease=consumes(leases))
    def die(self, lease: Lease) -> None:
        """Nobody will ever use this lease again."""

    @rule(lease=leases)
    def renew(self, lease: Lease) -> None:
        before = self.traces(lease.job_id)
        worker = WorkerIdentity(GROUP, "a", 60_000, 300)
        answer = self.one(renewal(lease, KEYS, worker)).answer
        if self.owns(lease):
            assert answer is Answer.OK
        else:
            assert answer is (Answer.GONE if lease.job_id in self.expired else Answer.LOST)
            assert self.traces(lease.job_id) == before

    @rule(lease=leases, count=st.integers(0, 3), again=st.booleans())
    def emit(self, lease: Lease, count: int, again: bool) -> None:
        events = ["note", "step", b"{}"] * count
        known = self.emitted.get((lease.job_id, lease.token), 0)
        args = [lease.job_id, lease.attempt, lease.token, known + 1, *events]
        record = Record("emit", self.job_keys(lease.job_id), args, IDENTITY)
        before = self.traces(lease.job_id)
        answers = {reply.answer for reply in self.call(*[record] * (2 if again else 1))}
        after = self.traces(lease.job_id)
        if self.owns(lease):
            assert answers == {Answer.OK}
            assert len(after[1]) == len(before[1]) + count
            self.emitted[lease.job_id, lease.token] = known + count
        else:
            gone = lease.job_id in self.expired
            assert answers == {Answer.GONE if gone else Answer.LOST}
            assert after == before  # I4

    @rule(lease=leases, status=st.sampled_from(["done", "error"]), count=st.integers(0, 2))
    def finish(self, lease: Lease, status: str, count: int) -> None:
        job_id = lease.job_id
        known = self.emitted.get((job_id, lease.token), 0)
        args = [job_id, lease.attempt, lease.token, lease.message_id]
        args += [status, b"1", b"", f"worker.{status}", b"{}", "", known + 1]
        args += ["note", "step", b"{}"] * count
        before, ended = self.traces(job_id), self.status(job_id) in TERMINAL
        answer = self.one(Record("finish", self.job_keys(job_id), args, IDENTITY)).answer
        after = self.traces(job_id)
        if self.owns(lease):
            assert answer is Answer.OK
            assert len(after[1]) == len(before[1]) + count + 1
            self.owner[job_id] = None
            return
        assert after == before  # I4
        gone = job_id in self.expired
        assert answer is (Answer.GONE if gone else Answer.ALREADY if ended else Answer.LOST)

    @rule(job_id=jobs)
    def expire(self, job_id: str) -> None:
        self.client.delete(*self.job_keys(job_id)[:3])
        self.expired.add(job_id)
        self.owner[job_id] = None

    @rule(message=messages)
    def put_aside(self, message: Any) -> None:
        message_id, fields = message
        if fields[b"job_id"].decode() in self.expired:
            args = [GROUP, message_id, DeadReason.NO_JOB.value, b"{}", "", "", ""]
            self.one(Record("dead", [], args))

    @rule()
    def trim(self) -> None:
        unread = self.client.xinfo_groups(KEYS.queue)[0]["last-delivered-id"]
        needed = self.client.xrange(KEYS.queue, b"(" + unread)
        needed += [
            entry
            for pending in self.client.xpending_range(KEYS.queue, GROUP, "-", "+", 1000)
            for entry in self.client.xrange(KEYS.queue, pending["message_id"], count=1)
        ]
        assert self.one(Record("trim", [], ["-", 2, 1])).answer is Answer.OK
        left = self.client.xrange(KEYS.queue)
        assert all(entry in left for entry in needed)

    # -- invariants ----------------------------------------------------------------------------

    @invariant()
    def one_end_last_and_equal_to_the_status(self) -> None:  # I2
        for job_id in self.owner.keys() - self.expired:
            events = self.client.xrange(KEYS.events(job_id))
            types = [fields[b"type"] for _, fields in events]
            ends = [type for type in types if type in TERMINAL]
            status = self.status(job_id)
            assert status in STATUSES
            assert ends == ([status] if status in TERMINAL else [])
            assert not ends or types[-1] == ends[0]
            assert all(set(fields) == {b"type", b"ts", b"step", b"data"} for _, fields in events)
            assert self.client.hlen(KEYS.job(job_id)) == 9
            assert (self.owner[job_id] is not None) == (status == b"running")

    @invariant()
    def an_ack_implies_an_end(self) -> None:  # I3
        pending = {
            entry["message_id"]
            for entry in self.client.xpending_range(KEYS.queue, GROUP, "-", "+", 1000)
        }
        last = self.client.xinfo_groups(KEYS.queue)[0]["last-delivered-id"]
        for entry_id, fields in self.client.xrange(KEYS.queue, "-", last):
            if entry_id not in pending:
                job_id = fields[b"job_id"].decode()
                assert job_id in self.expired or self.status(job_id) in TERMINAL

    @invariant()
    def nothing_lives_for_ever(self) -> None:  # I7
        for key in self.client.keys("job:*"):
            assert self.client.ttl(key) > 0, key

    @invariant()
    def a_job_is_queued_once(self) -> None:  # I8
        queued = [fields[b"job_id"] for _, fields in self.client.xrange(KEYS.queue)]
        assert len(queued) == len(set(queued))


@pytest.mark.parametrize("name", REAL)
def test_invariants_hold_in_every_history(
    name: str, real_server: Callable[[str], RealServer]
) -> None:
    client = real_server(name).client
    run_state_machine_as_test(
        lambda: JobHistory(client),
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

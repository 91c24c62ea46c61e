"""A random history of jobs: its operations, with their expected answers and effects."""

from __future__ import annotations

from typing import Any, ClassVar

import redis

from sluice.common.contracts.access import AccessKeys
from sluice.common.contracts.jobs import CHECKPOINT_PREFIX, DeadReason
from sluice.common.contracts.queue import DO_NOT_BEGIN, Answer
from sluice.common.jobs.store import Lease, renewal_record
from sluice.common.jobs.wait_queue import wait_queue_name
from sluice.common.redis.scripts import Record, Reply, unpack
from tests.support.histories.jobs import (
    FAR_MS,
    GROUP,
    KEYS,
    LIMITED_TASK,
    RUNNING,
    SLOTS,
    JobInvariants,
    Model,
)

TASKS = ["chat", LIMITED_TASK, LIMITED_TASK]
MOST = [1, 2, 1_000_000, 1_000_000]
ENDS = ["done", "error", "dead", "canceled", "retry", "not now", "release", "release", "die"]
#: Maximum number of scheduled jobs.
MOST_SCHEDULED = 2
EVENT = ["note", "step", b"{}"]
WAIT_QUEUES = [wait_queue_name("chat"), wait_queue_name(LIMITED_TASK)]
#: Message id and job id.
Message = tuple[str, str]


class JobHistory(JobInvariants):
    """Clients post, schedule and cancel jobs. Workers read, begin, emit, save, renew, retry and
    finish, or have no slot for a message. They die, stall past their lease, continue as superseded
    attempts and repeat calls whose replies were lost. The model knows the current attempt, and
    Redis must agree after every step. The invariants are those of docs/reliability.md. Time passes
    by editing times in Redis.
    """

    operations: ClassVar[dict[str, int]] = {
        "post": 2,
        "use_client": 1,
        "pass_time": 2,
        "promote": 1,
        "read_and_begin": 2,
        "fetch_and_begin": 1,
        "read": 1,
        "begin_again": 3,
        "use_wait_queues": 1,
        "maintain": 1,
        "report": 3,
        "end": 3,
    }

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        #: What an operation may act on, newest first.
        self.jobs: list[str] = []
        self.messages: list[Message] = []
        self.leases: list[Lease] = []
        client.set(KEYS.idempotency("used"), "elsewhere", ex=600)
        client.set(KEYS.fingerprint("used"), "another request", ex=600)

    def start(self) -> None:
        for _ in range(self.rng.randint(2, 4)):
            self.post(may_wait=False)
        self.read_and_begin()

    def a_job(self) -> str:
        return self.rng.choice(self.jobs[:10])

    def a_message(self) -> Message:
        return self.rng.choice(self.messages[:10])

    def a_lease(self) -> Lease:
        return self.rng.choice(self.leases[:10])

    def a_worker(self) -> str:
        return self.rng.choice("ab")

    def a_delay(self) -> int:
        return self.rng.choice([0, FAR_MS])

    # -- clients -------------------------------------------------------------------------------

    def enqueue(self, job_id: str, delay_ms: int = 0, backlog: int = 10**6, key: str = "") -> Reply:
        model = self.models.get(job_id, Model())
        keys = [KEYS.job(job_id), KEYS.events(job_id)]
        args: list[Any] = [job_id, model.task, b"{}", 600, GROUP, backlog, 600, key and "print"]
        if delay_ms or model.most < 1000:
            keys += [KEYS.lease(job_id), KEYS.scheduled]
            args += [delay_ms, MOST_SCHEDULED, 0, 0, 0]
            args += ["max_attempts", model.most] if model.most < 1000 else []
        if key:
            keys += [KEYS.idempotency(key), KEYS.fingerprint(key)]
        return self.script.one(Record("enqueue", keys, args))

    def post(self, may_wait: bool = True) -> None:
        job_id, delay_ms = self.next("job"), self.a_delay() if may_wait else 0
        self.models[job_id] = Model(self.rng.choice(TASKS), self.rng.choice(MOST))
        reply = self.enqueue(job_id, delay_ms)
        if delay_ms and len(self.schedule) >= MOST_SCHEDULED:
            assert (reply.answer, reply.value) == (Answer.LIMITED, len(self.schedule))
            assert not self.client.exists(*self.job_keys(job_id))  # I9
            del self.models[job_id]
            return
        assert reply.answer is Answer.CREATED
        if delay_ms:
            self.schedule[job_id] = False
        self.jobs.insert(0, job_id)

    def use_client(self) -> None:
        self.rng.choice([self.cancel, self.cancel, self.post_again, self.post_refused])()

    def post_again(self) -> None:
        """Repeat a request after a lost reply."""
        job_id = self.a_job()
        if not self.models[job_id].expired:
            with self.unchanged(job_id):
                assert self.enqueue(job_id, self.a_delay()).answer is Answer.CREATED

    def post_refused(self) -> None:
        job_id, keys = self.next("refused"), self.client.dbsize()
        assert self.enqueue(job_id, self.a_delay(), key="used").answer is Answer.CONFLICT
        assert self.enqueue(job_id, backlog=0, key="new").answer is Answer.FULL
        assert self.client.dbsize() == keys  # I9

    def cancel(self, job_id: str = "") -> None:
        job_id = job_id or self.a_job()
        model, before = self.models[job_id], self.traces(job_id)
        args = [job_id, GROUP, KEYS.control, b"{}", 300]
        record = Record("cancel", [*self.job_keys(job_id), KEYS.scheduled], args)
        answer = self.script.one(record).answer
        if model.expired:
            assert answer is Answer.MISSING
        elif model.ended:
            assert answer is Answer.ALREADY
        elif model.owner is not None:
            assert answer is Answer.CANCELING
            added = len(self.traces(job_id)[1]) - len(before[1])
            assert added == (0 if model.canceling else 1)
            model.canceling = True
            return
        else:
            assert answer is Answer.CANCELED
            self.schedule.pop(job_id, None)
            if model.handed_back:
                assert self.deliveries(model.message_id) == 0
            model.end()
            return
        assert self.traces(job_id) == before

    # -- time and the schedule -----------------------------------------------------------------

    def pass_time(self) -> None:
        what = self.rng.choice(["lease", "leases", "waits", "due", "ttl"])
        if what == "ttl":
            self.expire(self.a_job())
        elif what == "lease" and self.leases:
            self.expire_lease(self.a_lease())
        elif what == "leases":
            for lease in self.leases:
                self.expire_lease(lease)
        for job_id in self.jobs:
            if what == "waits":
                self.end_delay(job_id)
            elif what == "due":
                self.become_due(job_id)

    def expire(self, job_id: str) -> None:
        model = self.models[job_id]
        self.client.delete(*self.job_keys(job_id))
        model.end()
        model.ended, model.expired = False, True

    def expire_lease(self, lease: Lease) -> None:
        model = self.models[lease.job_id]
        if self.owns(lease):
            self.client.hset(KEYS.lease(lease.job_id), "deadline_ms", "1")
            model.live = False
        if lease.job_id in self.slots and not model.live:
            self.client.zadd(RUNNING, {lease.job_id: 1}, xx=True)
            self.slots.discard(lease.job_id)

    def end_delay(self, job_id: str) -> None:
        if self.models[job_id].waits:
            self.models[job_id].waits = False
            if not self.models[job_id].expired and not self.models[job_id].ended:
                self.client.hset(KEYS.lease(job_id), "not_before_ms", "1")

    def become_due(self, job_id: str) -> None:
        if job_id in self.schedule:
            self.client.zadd(KEYS.scheduled, {job_id: 1}, xx=True)
            self.schedule[job_id] = True

    def promote(self) -> None:
        """Promote a job by one or two promoters."""
        if not self.schedule:
            return
        job_id = self.rng.choice([*self.schedule, self.jobs[0]])
        if self.chance(0.5):
            self.become_due(job_id)
        records = [Record("promote", [KEYS.job(job_id), KEYS.scheduled], [job_id])]
        length = self.client.xlen(KEYS.queue)
        replies = self.script.send(*records * self.rng.randint(1, 2))
        first, *later = [reply.answer for reply in replies]
        added = 0
        if job_id not in self.schedule:
            assert first is Answer.ALREADY
        elif not self.schedule[job_id]:
            assert first is Answer.WAIT
        else:
            expired = self.models[job_id].expired
            assert first is (Answer.MISSING if expired else Answer.OK)
            added = 0 if expired else 1
            del self.schedule[job_id]
        assert later in ([], [Answer.WAIT if first is Answer.WAIT else Answer.ALREADY])
        assert self.client.xlen(KEYS.queue) == length + added

    # -- attempts ------------------------------------------------------------------------------

    def read(self, consumer: str = "") -> list[Message]:
        """A worker reads messages; if it does nothing else, it dies."""
        stream, count = {KEYS.queue: ">"}, self.rng.randint(1, 4)
        reply = self.client.xreadgroup(GROUP, consumer or self.a_worker(), stream, count=count)
        entries = reply[0][1] if reply else []
        found = [(entry_id.decode(), fields[b"job_id"].decode()) for entry_id, fields in entries]
        self.messages[:0] = reversed(found)
        return found

    def read_and_begin(self) -> None:
        consumer, twice = self.a_worker(), self.chance(0.5)
        for message in reversed(self.read(consumer)):
            self.begin(message, consumer, twice)

    def begin_again(self) -> None:
        """A worker begins a message that was read before, perhaps by another one."""
        if self.messages:
            message, consumer = self.a_message(), self.a_worker()
            if self.chance(0.5):
                self.client.xclaim(KEYS.queue, GROUP, consumer, 0, [message[0]])
            self.begin(message, consumer, self.chance(0.5))
            self.dead_letter(message)

    def expected(self, job_id: str) -> Answer:
        """The expected answer of BEGIN."""
        model = self.models[job_id]
        if model.expired:
            return Answer.MISSING
        if model.ended or (model.canceling and not model.live):
            return Answer.TERMINAL
        if model.live:
            return Answer.BUSY
        if model.waits:
            return Answer.WAIT
        if model.attempts - model.released >= model.most:
            return Answer.EXHAUSTED
        if model.limited and len(self.slots) >= SLOTS:
            return Answer.LIMITED
        return Answer.RUN

    def begin(self, message: Message, consumer: str, twice: bool) -> None:
        message_id, job_id = message
        model, token = self.models[job_id], self.next("t")
        before, expected = self.traces(job_id), self.expected(job_id)
        lease = Lease(job_id, message_id, 0, token, RUNNING if model.limited else "")
        args = [job_id, message_id, token, "", SLOTS if model.limited else ""]
        record = Record("begin", self.job_keys(job_id, lease), args, self.identity(consumer))
        reply = self.script.one(record)
        assert reply.answer is expected
        added = len(self.traces(job_id)[1]) - len(before[1])
        if twice:  # the reply was lost
            after, again = self.traces(job_id), self.script.one(record)
            ended = expected is Answer.EXHAUSTED
            assert again.answer is (Answer.TERMINAL if ended else expected)
            assert self.traces(job_id)[:2] == after[:2]
        if self.apply_begin(lease, reply, expected):
            assert added == 1
        else:
            assert self.traces(job_id) == before

    def apply_begin(self, lease: Lease, reply: Reply, expected: Answer) -> bool:
        """Update the model; returns whether the job has one more event."""
        model = self.models[lease.job_id]
        if expected is Answer.RUN:
            model.attempts += 1
            assert int(reply.value or 0) == model.attempts
            model.owner, model.live, model.handed_back = (model.attempts, lease.token), True, None
            if model.limited:
                self.slots.add(lease.job_id)
                model.revived = False
            self.leases.insert(0, lease._replace(attempt=model.attempts))
            return True
        if expected is Answer.EXHAUSTED or (expected is Answer.TERMINAL and not model.ended):
            self.letters += expected is Answer.EXHAUSTED
            model.end()
            return True
        return False

    def fenced(
        self, record: Record, lease: Lease, lost: Answer = Answer.LOST, times: int = 1
    ) -> tuple[Answer, int] | None:
        """A write of an attempt: its answer and the number of new events, or None without its
        lease, which changes nothing (I4)."""
        before = self.traces(lease.job_id)
        answers = {reply.answer for reply in self.script.send(*[record] * times)}
        after = self.traces(lease.job_id)
        if self.owns(lease):
            [answer] = answers
            return answer, len(after[1]) - len(before[1])
        assert answers == {Answer.GONE if self.models[lease.job_id].expired else lost}
        assert after == before
        return None

    def report(self) -> None:
        """An attempt renews its lease, emits events or saves a checkpoint."""
        if not self.leases:
            return
        lease, what = self.a_lease(), self.rng.choice(["renew", "emit", "save", "save"])
        if what == "renew":
            self.renew(lease)
        elif what == "emit":
            self.write("emit", lease, [])
        else:
            name, value = self.rng.choice("ab"), b"%d" % self.rng.randrange(30)
            if self.write("save_checkpoint", lease, [f"{CHECKPOINT_PREFIX}{name}", value]):
                self.models[lease.job_id].saved[name] = value

    def renew(self, lease: Lease) -> None:
        model = self.models[lease.job_id]
        renewed = self.fenced(renewal_record(lease, KEYS, self.identity()), lease)
        if renewed is None:
            return
        assert renewed == (Answer.CANCELING if model.canceling else Answer.OK, 0)
        if model.limited:  # it is still running, even if another job has its slot
            model.revived = model.revived or lease.job_id not in self.slots
            self.slots.add(lease.job_id)
        model.live = True

    def write(self, operation: str, lease: Lease, words: list[Any]) -> bool:
        """EMIT or SAVE_CHECKPOINT, perhaps repeated; returns whether it was written."""
        known, count = self.known(lease), self.rng.randint(0, 3)
        args = [lease.job_id, lease.attempt, lease.token, *words, known + 1, *EVENT * count]
        record = Record(operation, self.job_keys(lease.job_id), args, self.identity())
        written = self.fenced(record, lease, times=self.rng.randint(1, 2))
        if written is not None:
            assert written == (Answer.OK, count)
            self.models[lease.job_id].emitted[lease.token] = known + count
        return written is not None

    def fetch_and_begin(self) -> None:
        """Read and begin in one call; messages of the limited task are only read."""
        consumer, count = self.a_worker(), self.rng.randint(1, 4)
        group = next(each for each in self.client.xinfo_groups(KEYS.queue))
        last = group["last-delivered-id"].decode()
        coming = self.client.xrange(KEYS.queue, f"({last}", count=count)
        jobs = {fields[b"job_id"].decode() for _, fields in coming}
        before = {job_id: self.traces(job_id) for job_id in jobs}
        token = self.next("t")
        args = [token, count, KEYS.job(""), "", LIMITED_TASK, DO_NOT_BEGIN]
        repeated = [*args[:3], f"({last}", *args[4:]]
        reply = self.script.one(Record("fetch_and_begin", [], args, self.identity(consumer)))
        entries: Any = reply.value
        assert [entry[0] for entry in entries] == [entry_id for entry_id, _ in coming]
        added, begun = dict.fromkeys(jobs, 0), []
        for (entry_id, fields), raw in zip(coming, reply.more):
            message_id, job_id = entry_id.decode(), fields[b"job_id"].decode()
            self.messages.insert(0, (message_id, job_id))
            if self.models[job_id].limited:
                assert raw == []
                continue
            expected, outcome = self.expected(job_id), unpack(raw)
            assert isinstance(outcome, Reply)
            assert outcome.answer is expected
            lease = Lease(job_id, message_id, 0, f"{token}.{message_id}")
            added[job_id] += self.apply_begin(lease, outcome, expected)
            if expected is Answer.RUN:
                begun.append([entry_id, raw[1]])
        after = {job_id: self.traces(job_id) for job_id in jobs}
        for job_id in jobs:
            assert len(after[job_id][1]) - len(before[job_id][1]) == added[job_id]
            assert added[job_id] or after[job_id] == before[job_id]
        if begun and self.chance(0.5):  # the reply was lost
            again = self.script.one(
                Record("fetch_and_begin", [], repeated, self.identity(consumer))
            )
            found: Any = again.value
            assert [[entry[0], b"%d" % int(raw[1])] for entry, raw in zip(found, again.more)] == [
                [entry_id, b"%d" % int(attempt)] for entry_id, attempt in begun
            ]
            assert {raw[0] for raw in again.more} == {b"run"}
            assert {job_id: self.traces(job_id)[:2] for job_id in jobs} == {
                job_id: traces[:2] for job_id, traces in after.items()
            }

    # -- wait queues ---------------------------------------------------------------------------

    def use_wait_queues(self) -> None:
        if self.messages:
            self.rng.choice([self.wait_for_slot, self.take, self.touch])()

    def waiting(self) -> list[str]:
        """Ids of the messages in wait queues, oldest first."""
        found = []
        for wait_queue in WAIT_QUEUES:
            entries = self.client.xpending_range(KEYS.queue, GROUP, "-", "+", 1000, wait_queue)
            found += [entry["message_id"].decode() for entry in entries]
        return sorted(found, key=lambda each: [int(part) for part in each.split("-")])

    def wait_for_slot(self) -> None:
        """A worker has a message but no slot for it."""
        message_id, job_id = self.a_message()
        deliveries = self.deliveries(message_id)
        wait_queue = wait_queue_name(self.models[job_id].task)
        self.client.xclaim(KEYS.queue, GROUP, wait_queue, 0, [message_id], justid=True)
        assert self.deliveries(message_id) == deliveries

    def take(self) -> None:
        before, count = self.waiting(), self.rng.randint(1, 4)
        words = [GROUP, self.a_worker(), count, *WAIT_QUEUES]
        reply = self.script.one(Record("take_waiting", [], words))
        assert [part.decode() for part in reply.more[::8]] == before[:count]
        assert self.waiting() == before[count:]

    def touch(self) -> None:
        before = self.waiting()
        for wait_queue in WAIT_QUEUES:
            words = [GROUP, wait_queue, "-", self.rng.randint(1, 4)]
            self.script.one(Record("touch_waiting", [], words))
        assert self.waiting() == before

    # -- ends of attempts ----------------------------------------------------------------------

    def end(self) -> None:
        if not self.leases:
            return
        lease, end = self.a_lease(), self.rng.choice(ENDS)
        if end in ("retry", "not now"):
            self.retry(lease, self.a_delay(), end == "not now")
        elif end == "release":
            self.release(lease)
        elif end == "die":
            self.leases.remove(lease)
        else:
            self.finish(lease, "error" if end == "dead" else end, end == "dead")
        then = self.rng.choice(["", "begin", "cancel"])
        if then == "begin":
            self.begin((lease.message_id, lease.job_id), "b", False)
        elif then == "cancel":
            self.cancel(lease.job_id)

    def known(self, lease: Lease) -> int:
        return self.models[lease.job_id].emitted.get(lease.token, 0)

    def ending(self, operation: str, lease: Lease, words: list[Any], count: int) -> Record:
        args = [lease.job_id, lease.attempt, lease.token, lease.message_id, *words]
        args += [self.known(lease) + 1, *EVENT * count]
        return Record(operation, self.job_keys(lease.job_id, lease), args, self.identity())

    def is_over(self, lease: Lease, record: Record, again: Answer) -> None:
        """The slot is free, and a repeat after a lost reply changes nothing."""
        self.slots.discard(lease.job_id)
        assert self.client.zscore(RUNNING, lease.job_id) is None
        with self.unchanged(lease.job_id):
            assert self.script.one(record).answer is again

    def finish(self, lease: Lease, status: str, dead: bool) -> None:
        model, count = self.models[lease.job_id], self.rng.randint(0, 2)
        words = [status, b"1", b"", f"worker.{status}", b"{}", "1" if dead else ""]
        record = self.ending("finish", lease, words, count)
        ended = self.fenced(record, lease, Answer.ALREADY if model.ended else Answer.LOST)
        if ended is not None:
            assert ended == (Answer.OK, count + 1)
            self.letters += dead
            model.end()
            self.is_over(lease, record, Answer.ALREADY)

    def hand_back(self, operation: str, lease: Lease, words: list[Any]) -> bool:
        """RETRY or RELEASE; returns whether the job is queued again."""
        model, count = self.models[lease.job_id], self.rng.randint(0, 2)
        record = self.ending(operation, lease, words, count)
        repeated = model.handed_back == (lease.attempt, lease.token)
        answered = self.fenced(record, lease, Answer.OK if repeated else Answer.LOST)
        if answered is None:
            return False
        canceled = operation == "retry" and model.canceling
        assert answered == (Answer.CANCELED if canceled else Answer.OK, count + 1)
        if canceled:
            model.end()
        else:
            model.hand_back()
            model.message_id = lease.message_id
        self.is_over(lease, record, Answer.LOST if canceled else Answer.OK)
        return not canceled

    def retry(self, lease: Lease, delay_ms: int, free: bool) -> None:
        if self.hand_back("retry", lease, [delay_ms, b'{"kind":"x"}', b"{}", "1" if free else ""]):
            self.models[lease.job_id].waits = delay_ms > 0
            self.models[lease.job_id].released += free
            assert self.client.ttl(KEYS.job(lease.job_id)) > delay_ms / 1000

    def release(self, lease: Lease) -> None:
        pending = self.deliveries(lease.message_id)
        if self.hand_back("release", lease, [b"{}"]):
            self.models[lease.job_id].released += 1
            found = self.client.xautoclaim(KEYS.queue, GROUP, "b", 3_000_000, count=100)
            assert lease.message_id.encode() in [entry_id for entry_id, _ in found[1]]
            assert pending

    # -- maintenance ---------------------------------------------------------------------------

    def maintain(self) -> None:
        tasks = [self.trim, self.trim, self.remove_consumers, self.prune_quota]
        self.rng.choice([*tasks, self.redrive] if self.letters else tasks)()

    def dead_letter(self, message: Message) -> None:
        message_id, job_id = message
        model, deliveries = self.models[job_id], self.deliveries(message_id)
        if not model.expired:
            return
        args = [GROUP, message_id, DeadReason.NO_JOB.value, b"{}", job_id, model.task, b"{}"]
        record = Record("dead_letter", self.job_keys(job_id), args)
        answer = self.script.one(record).answer
        if deliveries == 0:
            assert answer is Answer.ALREADY
            return
        assert answer is (Answer.EXPIRED if deliveries == 1 else Answer.OK)
        self.letters += 1
        if deliveries == 1:
            model.expired, model.ended = False, True
        with self.unchanged(job_id):
            assert self.script.one(record).answer is Answer.ALREADY

    def redrive(self) -> None:
        letters = self.client.xrange(KEYS.dead_letters, count=1)
        job_id = self.next("redriven")
        args = [letters[0][0], job_id, "chat", b"{}", 600, 0, b"{}", 0, b""]
        became = KEYS.redriven(letters[0][0].decode())
        record = Record("redrive", [*self.job_keys(job_id), KEYS.scheduled, became], args)
        assert self.script.one(record).answer is Answer.CREATED
        self.models[job_id] = Model()
        self.letters -= 1
        with self.unchanged(job_id):
            assert self.script.one(record).answer is Answer.CREATED
        self.jobs.insert(0, job_id)

    def trim(self) -> None:
        cursor, size, tolerated = "-", self.rng.randint(1, 3), self.rng.randint(0, 2)
        for _ in range(self.rng.randint(1, 4)):
            reply = self.script.one(Record("trim", [], [cursor, size, tolerated]))
            assert reply.answer is Answer.OK
            cursor = reply.more[0]
            if not cursor:
                break

    def remove_consumers(self) -> None:
        pending = self.client.xpending(KEYS.queue, GROUP)["pending"]
        record = Record("remove_idle_consumers", [], [GROUP, -1])
        assert self.script.one(record).answer is Answer.OK
        assert self.client.xpending(KEYS.queue, GROUP)["pending"] == pending

    def prune_quota(self) -> None:
        """Treat all jobs as those of one key: only unfinished, existing ones count."""
        active = AccessKeys().active("k")
        self.client.zadd(active, dict.fromkeys(self.jobs, 1))
        alive = [name for name in self.jobs if not self.models[name].is_over]
        record = Record("prune_quota", [active, *map(KEYS.job, self.jobs)], self.jobs)
        assert self.script.one(record).value == len(self.jobs) - len(alive)
        left = {member.decode() for member in self.client.zrange(active, 0, -1)}
        assert left == set(alive)
        self.client.delete(active)

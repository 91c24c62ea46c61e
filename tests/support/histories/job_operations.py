"""Operations of the job scripts in a random history, with their expected answers and effects."""

from __future__ import annotations

from typing import Any

import redis

from common.contracts.access import AccessKeys
from common.contracts.jobs import CHECKPOINT_PREFIX, DeadReason
from common.contracts.queue import DO_NOT_BEGIN, Answer
from common.jobs.store import Lease, renewal_record
from common.jobs.wait_queue import wait_queue_name
from common.redis.scripts import Record, Reply, unpack
from tests.support.histories.jobs import (
    GROUP,
    KEYS,
    LIMITED_TASK,
    RUNNING,
    SLOTS,
    JobInvariants,
    Model,
)

#: Maximum number of scheduled jobs.
MOST_SCHEDULED = 2
EVENT = ["note", "step", b"{}"]
WAIT_QUEUES = [wait_queue_name("chat"), wait_queue_name(LIMITED_TASK)]
#: Message id and job id.
Message = tuple[str, str]


class JobOperations(JobInvariants):
    """Each operation, with the answer and effect that the model expects."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        #: What an operation may act on, newest first.
        self.jobs: list[str] = []
        self.messages: list[Message] = []
        self.leases: list[Lease] = []
        client.set(KEYS.idempotency("used"), "elsewhere", ex=600)
        client.set(KEYS.fingerprint("used"), "another request", ex=600)

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
        return self.one(Record("enqueue", keys, args))

    def post(self, task: str, most: int, delay_ms: int) -> None:
        job_id = self.next("job")
        self.models[job_id] = Model(task, most)
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

    def post_again_after_a_lost_reply(self, job_id: str, delay_ms: int) -> None:
        if not self.models[job_id].expired:
            before = self.traces(job_id), self.client.xlen(KEYS.queue)
            assert self.enqueue(job_id, delay_ms).answer is Answer.CREATED
            assert (self.traces(job_id), self.client.xlen(KEYS.queue)) == before

    def post_with_a_key_of_another_request(self, delay_ms: int) -> None:
        job_id, keys = self.next("refused"), self.client.dbsize()
        assert self.enqueue(job_id, delay_ms, key="used").answer is Answer.CONFLICT
        assert self.enqueue(job_id, backlog=0, key="new").answer is Answer.FULL
        assert self.client.dbsize() == keys  # I9

    def cancel(self, job_id: str) -> None:
        model, before = self.models[job_id], self.traces(job_id)
        args = [job_id, GROUP, KEYS.control, b"{}", 300]
        record = Record("cancel", [*self.job_keys(job_id), KEYS.scheduled], args)
        answer = self.one(record).answer
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

    # -- the schedule --------------------------------------------------------------------------

    def become_due(self, job_id: str) -> None:
        if job_id in self.schedule:
            self.client.zadd(KEYS.scheduled, {job_id: 1}, xx=True)
            self.schedule[job_id] = True

    def promote(self, job_id: str, clients: int) -> None:
        record = Record("promote", [KEYS.job(job_id), KEYS.scheduled], [job_id])
        length = self.client.xlen(KEYS.queue)
        first, *later = [reply.answer for reply in self.call(*[record] * clients)]
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

    # -- messages ------------------------------------------------------------------------------

    def read(self, consumer: str, count: int) -> None:
        reply = self.client.xreadgroup(GROUP, consumer, {KEYS.queue: ">"}, count=count)
        entries = reply[0][1] if reply else []
        for entry_id, fields in entries:
            self.messages.insert(0, (entry_id.decode(), fields[b"job_id"].decode()))

    # -- attempts ------------------------------------------------------------------------------

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
        reply = self.one(record)
        assert reply.answer is expected
        added = len(self.traces(job_id)[1]) - len(before[1])
        if twice:  # the reply was lost
            after, again = self.traces(job_id), self.one(record)
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

    def renew(self, lease: Lease) -> None:
        model, before = self.models[lease.job_id], self.traces(lease.job_id)
        answer = self.one(renewal_record(lease, KEYS, self.identity())).answer
        if not self.owns(lease):
            assert answer is (Answer.GONE if model.expired else Answer.LOST)
            assert self.traces(lease.job_id) == before
            return
        assert answer is (Answer.CANCELING if model.canceling else Answer.OK)
        if model.limited:  # it is still running, even if another job has its slot
            model.revived = model.revived or lease.job_id not in self.slots
            self.slots.add(lease.job_id)
        model.live = True

    def write(
        self, operation: str, lease: Lease, words: list[Any], count: int, again: bool
    ) -> bool:
        """EMIT or SAVE_CHECKPOINT, perhaps repeated; returns whether it was written."""
        model, known = self.models[lease.job_id], self.known(lease)
        args = [lease.job_id, lease.attempt, lease.token, *words, known + 1, *EVENT * count]
        record = Record(operation, self.job_keys(lease.job_id), args, self.identity())
        before = self.traces(lease.job_id)
        answers = {reply.answer for reply in self.call(*[record] * (2 if again else 1))}
        after = self.traces(lease.job_id)
        if not self.owns(lease):  # a finished attempt can never write
            assert answers == {Answer.GONE if model.expired else Answer.LOST}
            assert after == before  # I4
            return False
        assert answers == {Answer.OK}
        assert len(after[1]) == len(before[1]) + count
        model.emitted[lease.token] = known + count
        return True

    def emit(self, lease: Lease, count: int, again: bool) -> None:
        self.write("emit", lease, [], count, again)

    def save(self, lease: Lease, name: str, value: bytes, count: int, again: bool) -> None:
        words = [f"{CHECKPOINT_PREFIX}{name}", value]
        if self.write("save_checkpoint", lease, words, count, again):
            self.models[lease.job_id].saved[name] = value

    def take_next(self, consumer: str, count: int, twice: bool) -> None:
        """Read and begin in one call; messages of the limited task are only read."""
        group = next(each for each in self.client.xinfo_groups(KEYS.queue))
        last = group["last-delivered-id"].decode()
        coming = self.client.xrange(KEYS.queue, f"({last}", count=count)
        jobs = {fields[b"job_id"].decode() for _, fields in coming}
        before = {job_id: self.traces(job_id) for job_id in jobs}
        token = self.next("t")
        args = [token, count, KEYS.job(""), "", LIMITED_TASK, DO_NOT_BEGIN]
        repeated = [*args[:3], f"({last}", *args[4:]]
        reply = self.one(Record("fetch_and_begin", [], args, self.identity(consumer)))
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
        if twice and begun:  # the reply was lost
            again = self.one(Record("fetch_and_begin", [], repeated, self.identity(consumer)))
            found: Any = again.value
            assert [[entry[0], b"%d" % int(raw[1])] for entry, raw in zip(found, again.more)] == [
                [entry_id, b"%d" % int(attempt)] for entry_id, attempt in begun
            ]
            assert {raw[0] for raw in again.more} == {b"run"}
            assert {job_id: self.traces(job_id)[:2] for job_id in jobs} == {
                job_id: traces[:2] for job_id, traces in after.items()
            }

    # -- wait queues ---------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """Ids of the messages in wait queues, oldest first."""
        found = []
        for wait_queue in WAIT_QUEUES:
            entries = self.client.xpending_range(KEYS.queue, GROUP, "-", "+", 1000, wait_queue)
            found += [entry["message_id"].decode() for entry in entries]
        return sorted(found, key=lambda each: [int(part) for part in each.split("-")])

    def wait_for_slot(self, message: Message) -> None:
        """A worker has a message but no slot for it."""
        message_id, job_id = message
        deliveries = self.deliveries(message_id)
        wait_queue = wait_queue_name(self.models[job_id].task)
        self.client.xclaim(KEYS.queue, GROUP, wait_queue, 0, [message_id], justid=True)
        assert self.deliveries(message_id) == deliveries

    def take(self, consumer: str, count: int) -> None:
        before = self.waiting()
        reply = self.one(Record("take_waiting", [], [GROUP, consumer, count, *WAIT_QUEUES]))
        assert reply.value == len(before[:count])
        assert [part.decode() for part in reply.more[::8]] == before[:count]
        assert self.waiting() == before[count:]
        for message_id in before[:count]:
            [entry] = self.client.xpending_range(KEYS.queue, GROUP, message_id, message_id, 1)
            assert entry["consumer"].decode() == consumer

    def touch(self, page: int) -> None:
        before, kept = self.waiting(), []
        for wait_queue in WAIT_QUEUES:
            start = "-"
            while ids := self.one(
                Record("touch_waiting", [], [GROUP, wait_queue, start, page])
            ).more:
                kept += [each.decode() for each in ids]
                start = f"({kept[-1]}"
        assert sorted(kept) == sorted(before)
        assert self.waiting() == before

    # -- their ends ----------------------------------------------------------------------------

    def known(self, lease: Lease) -> int:
        return self.models[lease.job_id].emitted.get(lease.token, 0)

    def report(self, operation: str, lease: Lease, words: list[Any], count: int) -> Record:
        args = [lease.job_id, lease.attempt, lease.token, lease.message_id, *words]
        args += [self.known(lease) + 1, *EVENT * count]
        return Record(operation, self.job_keys(lease.job_id, lease), args, self.identity())

    def frees_its_slot(self, lease: Lease) -> None:
        self.slots.discard(lease.job_id)
        members = {member.decode() for member in self.client.zrange(RUNNING, 0, -1)}
        assert lease.job_id not in members

    def finish(self, lease: Lease, status: str, dead: bool, count: int) -> None:
        model, before = self.models[lease.job_id], self.traces(lease.job_id)
        dead = dead and status == "error"
        words = [status, b"1", b"", f"worker.{status}", b"{}", "1" if dead else ""]
        record = self.report("finish", lease, words, count)
        answer = self.one(record).answer
        after = self.traces(lease.job_id)
        if self.owns(lease):
            assert answer is Answer.OK
            assert len(after[1]) == len(before[1]) + count + 1
            self.letters += dead
            model.end()
            self.frees_its_slot(lease)
            assert self.one(record).answer is Answer.ALREADY
            assert self.traces(lease.job_id) == after
            return
        assert after == before  # I4
        lost = Answer.ALREADY if model.ended else Answer.LOST
        assert answer is (Answer.GONE if model.expired else lost)

    def hand_back(self, operation: str, lease: Lease, words: list[Any], count: int) -> bool:
        """RETRY or RELEASE; returns whether the job is queued again."""
        model, before = self.models[lease.job_id], self.traces(lease.job_id)
        record = self.report(operation, lease, words, count)
        answer = self.one(record).answer
        after = self.traces(lease.job_id)
        if not self.owns(lease):
            repeated = model.handed_back == (lease.attempt, lease.token)
            lost = Answer.OK if repeated else Answer.LOST
            assert answer is (Answer.GONE if model.expired else lost)
            assert after == before  # I4
            return False
        assert len(after[1]) == len(before[1]) + count + 1
        canceled = operation == "retry" and model.canceling
        assert answer is (Answer.CANCELED if canceled else Answer.OK)
        if canceled:
            model.end()
        else:
            model.hand_back()
            model.message_id = lease.message_id
        self.frees_its_slot(lease)
        assert self.one(record).answer is (Answer.LOST if canceled else Answer.OK)
        assert self.traces(lease.job_id) == after
        return not canceled

    def retry(self, lease: Lease, delay_ms: int, count: int, free: bool = False) -> None:
        words = [delay_ms, b'{"kind":"x"}', b"{}", "1" if free else ""]
        if self.hand_back("retry", lease, words, count):
            self.models[lease.job_id].waits = delay_ms > 0
            self.models[lease.job_id].released += free
            ttl_s = self.client.ttl(KEYS.job(lease.job_id))
            assert ttl_s > delay_ms / 1000

    def release(self, lease: Lease, count: int) -> None:
        pending = self.deliveries(lease.message_id)
        if self.hand_back("release", lease, [b"{}"], count):
            self.models[lease.job_id].released += 1
            found = self.client.xautoclaim(KEYS.queue, GROUP, "b", 3_000_000, count=100)
            assert lease.message_id.encode() in [entry_id for entry_id, _ in found[1]]
            assert pending

    # -- events from outside -------------------------------------------------------------------

    def expire(self, job_id: str) -> None:
        model = self.models[job_id]
        self.client.delete(*self.job_keys(job_id))
        model.end()
        model.ended, model.expired = False, True

    def dead_letter(self, message: Message) -> None:
        message_id, job_id = message
        model, deliveries = self.models[job_id], self.deliveries(message_id)
        if not model.expired:
            return
        args = [GROUP, message_id, DeadReason.NO_JOB.value, b"{}", job_id, model.task, b"{}"]
        record = Record("dead_letter", self.job_keys(job_id), args)
        answer = self.one(record).answer
        if deliveries == 0:
            assert answer is Answer.ALREADY
            return
        assert answer is (Answer.EXPIRED if deliveries == 1 else Answer.OK)
        self.letters += 1
        if deliveries == 1:
            model.expired, model.ended = False, True
        before = self.traces(job_id)
        assert self.one(record).answer is Answer.ALREADY
        assert self.traces(job_id) == before

    def redrive(self) -> None:
        letters = self.client.xrange(KEYS.dead_letters, count=1)
        job_id = self.next("redriven")
        args = [letters[0][0], job_id, "chat", b"{}", 600, 0, b"{}", 0, b""]
        became = KEYS.redriven(letters[0][0].decode())
        record = Record("redrive", [*self.job_keys(job_id), KEYS.scheduled, became], args)
        assert self.one(record).answer is Answer.CREATED
        self.models[job_id] = Model()
        self.letters -= 1
        before = self.traces(job_id), self.client.xlen(KEYS.queue)
        assert self.one(record).answer is Answer.CREATED
        assert (self.traces(job_id), self.client.xlen(KEYS.queue)) == before
        self.jobs.insert(0, job_id)

    def trim(self, pages: int, size: int, tolerated: int) -> None:
        view = self.read_view()
        kept = view.pending | view.undelivered()
        cursor: Any = "-"
        for _ in range(pages):
            reply = self.one(Record("trim", [], [cursor, size, tolerated]))
            assert reply.answer is Answer.OK
            cursor = reply.more[0]
            if not cursor:
                break
        left = [entry_id for entry_id, _ in self.client.xrange(KEYS.queue)]
        assert kept <= set(left)

    def remove_consumers(self) -> None:
        held = {
            info["name"]
            for info in self.client.xinfo_consumers(KEYS.queue, GROUP)
            if info["pending"]
        }
        pending = self.client.xpending(KEYS.queue, GROUP)["pending"]
        assert self.one(Record("remove_idle_consumers", [], [GROUP, -1])).answer is Answer.OK
        left = {info["name"] for info in self.client.xinfo_consumers(KEYS.queue, GROUP)}
        assert left == held
        assert self.client.xpending(KEYS.queue, GROUP)["pending"] == pending

    def prune_quota(self) -> None:
        """Treat all jobs as those of one key: only unfinished, existing ones count."""
        active = AccessKeys().active("k")
        self.client.zadd(active, dict.fromkeys(self.jobs, 1))
        over = {
            job_id
            for job_id in self.jobs
            if self.models[job_id].ended or self.models[job_id].expired
        }
        hashes = [KEYS.job(job_id) for job_id in self.jobs]
        assert self.one(Record("prune_quota", [active, *hashes], self.jobs)).value == len(over)
        left = {member.decode() for member in self.client.zrange(active, 0, -1)}
        assert left == set(self.jobs) - over
        self.client.delete(active)

"""Random histories over the scripts: whatever the order of events, the invariants hold.

Clients post, schedule and cancel jobs; workers read, begin, emit, renew, retry, release and
finish; they die, stall past their lease, wake up as zombies and repeat calls whose replies were
lost. The model knows which attempt is the current one; Redis must agree after every step.
Invariants are those of the reliability notes. Time passes by editing what Redis has noted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from common.contracts.access import AccessKeys
from common.contracts.jobs import DeadReason
from common.contracts.scripts import Answer
from common.scripts import Record, Reply
from common.store import Lease, renewal
from tests.backends import REAL, RealServer
from tests.common.history import (
    FAR_MS,
    GROUP,
    KEYS,
    LIMITED_TASK,
    PLACES,
    RUNNING,
    History,
    Model,
)

#: As many jobs may be scheduled.
MOST_SCHEDULED = 2
EVENT = ["note", "step", b"{}"]
#: A message's id, and its job's.
Message = tuple[str, str]
TASKS = st.sampled_from(["chat", LIMITED_TASK, LIMITED_TASK])
MOST = st.sampled_from([1, 2, 1_000_000, 1_000_000])
DELAYS = st.sampled_from([0, 0, 0, FAR_MS])
CONSUMERS = st.sampled_from("ab")
WISHES = ["cancel", "cancel", "post again", "refused"]
CHANGES = ["lease", "leases", "waits", "due", "ttl"]
CARE = ["trim", "trim", "forget", "redrive", "settle"]
WORDS = ["renew", "emit", "emit again"]
THEN = ["", "begin", "cancel"]
LAST_WORDS = ["done", "error", "dead", "canceled", "retry", "retry", "release", "release", "die"]
#: Which job, message or lease: counted from the newest.
ANY = st.integers(0, 9)


class Steps(History):
    """Each operation, with what it must say and change according to the model."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        #: What a rule may take up, newest first.
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
        """What BEGIN must say of a job."""
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
        if model.limited and len(self.places) >= PLACES:
            return Answer.LIMITED
        return Answer.RUN

    def begin(self, message: Message, consumer: str, twice: bool) -> None:
        message_id, job_id = message
        model, token = self.models[job_id], self.next("t")
        before, expected = self.traces(job_id), self.expected(job_id)
        lease = Lease(job_id, message_id, 0, token, RUNNING if model.limited else "")
        args = [job_id, message_id, token, "", PLACES if model.limited else ""]
        record = Record("begin", self.job_keys(job_id, lease), args, self.identity(consumer))
        reply = self.one(record)
        assert reply.answer is expected
        added = len(self.traces(job_id)[1]) - len(before[1])
        if twice:  # the reply was lost
            after, again = self.traces(job_id), self.one(record)
            ended = expected is Answer.EXHAUSTED
            assert again.answer is (Answer.TERMINAL if ended else expected)
            assert self.traces(job_id)[:2] == after[:2]
        if expected is Answer.RUN:
            model.attempts += 1
            assert int(reply.value or 0) == model.attempts
            model.owner, model.live, model.handed_back = (model.attempts, token), True, None
            if model.limited:
                self.places.add(job_id)
                model.revived = False
            assert added == 1
            self.leases.insert(0, lease._replace(attempt=model.attempts))
        elif expected is Answer.EXHAUSTED or (expected is Answer.TERMINAL and not model.ended):
            self.letters += expected is Answer.EXHAUSTED
            model.end()
            assert added == 1
        else:
            assert self.traces(job_id) == before

    def let_the_lease_run_out(self, lease: Lease) -> None:
        model = self.models[lease.job_id]
        if self.owns(lease):
            self.client.hset(KEYS.lease(lease.job_id), "deadline_ms", "1")
            model.live = False
        if lease.job_id in self.places and not model.live:
            self.client.zadd(RUNNING, {lease.job_id: 1}, xx=True)
            self.places.discard(lease.job_id)

    def let_the_wait_pass(self, job_id: str) -> None:
        if self.models[job_id].waits:
            self.models[job_id].waits = False
            if not self.models[job_id].expired and not self.models[job_id].ended:
                self.client.hset(KEYS.lease(job_id), "not_before_ms", "1")

    def renew(self, lease: Lease) -> None:
        model, before = self.models[lease.job_id], self.traces(lease.job_id)
        answer = self.one(renewal(lease, KEYS, self.identity())).answer
        if not self.owns(lease):
            assert answer is (Answer.GONE if model.expired else Answer.LOST)
            assert self.traces(lease.job_id) == before
            return
        assert answer is (Answer.CANCELING if model.canceling else Answer.OK)
        if model.limited:  # it has not stopped, whoever took its place
            model.revived = model.revived or lease.job_id not in self.places
            self.places.add(lease.job_id)
        model.live = True

    def emit(self, lease: Lease, count: int, again: bool) -> None:
        model, known = self.models[lease.job_id], self.known(lease)
        args = [lease.job_id, lease.attempt, lease.token, known + 1, *EVENT * count]
        record = Record("emit", self.job_keys(lease.job_id), args, self.identity())
        before = self.traces(lease.job_id)
        answers = {reply.answer for reply in self.call(*[record] * (2 if again else 1))}
        after = self.traces(lease.job_id)
        if self.owns(lease):
            assert answers == {Answer.OK}
            assert len(after[1]) == len(before[1]) + count
            model.emitted[lease.token] = known + count
        else:
            assert answers == {Answer.GONE if model.expired else Answer.LOST}
            assert after == before  # I4

    # -- their ends ----------------------------------------------------------------------------

    def known(self, lease: Lease) -> int:
        return self.models[lease.job_id].emitted.get(lease.token, 0)

    def report(self, operation: str, lease: Lease, words: list[Any], count: int) -> Record:
        args = [lease.job_id, lease.attempt, lease.token, lease.message_id, *words]
        args += [self.known(lease) + 1, *EVENT * count]
        return Record(operation, self.job_keys(lease.job_id, lease), args, self.identity())

    def frees_its_place(self, lease: Lease) -> None:
        self.places.discard(lease.job_id)
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
            self.frees_its_place(lease)
            assert self.one(record).answer is Answer.ALREADY
            assert self.traces(lease.job_id) == after
            return
        assert after == before  # I4
        lost = Answer.ALREADY if model.ended else Answer.LOST
        assert answer is (Answer.GONE if model.expired else lost)

    def hand_back(self, operation: str, lease: Lease, words: list[Any], count: int) -> bool:
        """RETRY or RELEASE; returns whether the job is queued again by it."""
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
        self.frees_its_place(lease)
        assert self.one(record).answer is (Answer.LOST if canceled else Answer.OK)
        assert self.traces(lease.job_id) == after
        return not canceled

    def retry(self, lease: Lease, delay_ms: int, count: int) -> None:
        words = [delay_ms, b'{"kind":"x"}', b"{}"]
        if self.hand_back("retry", lease, words, count):
            self.models[lease.job_id].waits = delay_ms > 0
            ttl_s = self.client.ttl(KEYS.job(lease.job_id))
            assert ttl_s > delay_ms / 1000

    def release(self, lease: Lease, count: int) -> None:
        pending = self.deliveries(lease.message_id)
        if self.hand_back("release", lease, [b"{}"], count):
            self.models[lease.job_id].released += 1
            found = self.client.xautoclaim(KEYS.queue, GROUP, "b", 3_000_000, count=100)
            assert lease.message_id.encode() in [entry_id for entry_id, _ in found[1]]
            assert pending

    # -- what nobody asked for -----------------------------------------------------------------

    def expire(self, job_id: str) -> None:
        model = self.models[job_id]
        self.client.delete(*self.job_keys(job_id))
        model.end()
        model.ended, model.expired = False, True

    def put_aside(self, message: Message) -> None:
        message_id, job_id = message
        model, deliveries = self.models[job_id], self.deliveries(message_id)
        if not model.expired:
            return
        args = [GROUP, message_id, DeadReason.NO_JOB.value, b"{}", job_id, model.task, b"{}"]
        record = Record("dead", self.job_keys(job_id)[:2], args)
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
        args = [letters[0][0], job_id, "chat", b"{}", 600, 0, b"{}", 0]
        became = KEYS.redriven(letters[0][0].decode())
        record = Record("redrive", [*self.job_keys(job_id)[:2], KEYS.scheduled, became], args)
        assert self.one(record).answer is Answer.CREATED
        self.models[job_id] = Model()
        self.letters -= 1
        before = self.traces(job_id), self.client.xlen(KEYS.queue)
        assert self.one(record).answer is Answer.CREATED
        assert (self.traces(job_id), self.client.xlen(KEYS.queue)) == before
        self.jobs.insert(0, job_id)

    def trim(self, pages: int, size: int, tolerated: int) -> None:
        sight = self.look()
        kept = sight.pending | sight.undelivered()
        cursor: Any = "-"
        for _ in range(pages):
            reply = self.one(Record("trim", [], [cursor, size, tolerated]))
            assert reply.answer is Answer.OK
            cursor = reply.more[0]
            if not cursor:
                break
        left = [entry_id for entry_id, _ in self.client.xrange(KEYS.queue)]
        assert kept <= set(left)

    def forget_consumers(self) -> None:
        held = {
            info["name"]
            for info in self.client.xinfo_consumers(KEYS.queue, GROUP)
            if info["pending"]
        }
        pending = self.client.xpending(KEYS.queue, GROUP)["pending"]
        assert self.one(Record("forget", [], [GROUP, -1])).answer is Answer.OK
        left = {info["name"] for info in self.client.xinfo_consumers(KEYS.queue, GROUP)}
        assert left == held
        assert self.client.xpending(KEYS.queue, GROUP)["pending"] == pending

    def settle(self) -> None:
        """Were all jobs of one key: what counts is what has neither ended nor gone."""
        active = AccessKeys().active("k")
        self.client.zadd(active, dict.fromkeys(self.jobs, 1))
        over = {
            job_id
            for job_id in self.jobs
            if self.models[job_id].ended or self.models[job_id].expired
        }
        hashes = [KEYS.job(job_id) for job_id in self.jobs]
        assert self.one(Record("settle", [active, *hashes], self.jobs)).value == len(over)
        left = {member.decode() for member in self.client.zrange(active, 0, -1)}
        assert left == set(self.jobs) - over
        self.client.delete(active)


def some(name: str) -> Callable[[Any], bool]:
    """Precondition: there is something to take up."""
    return lambda history: bool(getattr(history, name))


class JobHistory(Steps):
    """Any number of clients and workers, one queue. Few rules, each with a choice, are drawn more
    evenly than many."""

    @initialize(tasks=st.lists(TASKS, min_size=2, max_size=4), most=MOST)
    def begin_some(self, tasks: list[str], most: int) -> None:
        """A history that starts with nothing takes long to become interesting."""
        for task in tasks:
            self.post(task, most, 0)
        self.read("a", len(tasks))
        for message in [*self.messages]:
            self.begin(message, "a", False)

    @rule(task=TASKS, most=MOST, delay_ms=DELAYS)
    def a_client_posts(self, task: str, most: int, delay_ms: int) -> None:
        self.post(task, most, delay_ms)

    @rule(pick=ANY, wish=st.sampled_from(WISHES))
    @precondition(some("jobs"))
    def a_client_asks(self, pick: int, wish: str) -> None:
        job_id = self.jobs[pick % len(self.jobs)]
        if wish == "cancel":
            self.cancel(job_id)
        elif wish == "post again":
            self.post_again_after_a_lost_reply(job_id, FAR_MS * (pick % 2))
        else:
            self.post_with_a_key_of_another_request(FAR_MS * (pick % 2))

    @rule(pick=ANY, what=st.sampled_from(CHANGES))
    @precondition(some("jobs"))
    def time_passes(self, pick: int, what: str) -> None:
        if what == "ttl":
            self.expire(self.jobs[pick % len(self.jobs)])
        elif what == "lease" and self.leases:
            self.let_the_lease_run_out(self.leases[pick % len(self.leases)])
        elif what == "leases":
            for lease in self.leases:
                self.let_the_lease_run_out(lease)
        for job_id in self.jobs:
            if what == "waits":
                self.let_the_wait_pass(job_id)
            elif what == "due":
                self.become_due(job_id)

    @rule(pick=ANY, clients=st.integers(1, 2), due=st.booleans())
    @precondition(some("schedule"))
    def a_promoter_looks(self, pick: int, clients: int, due: bool) -> None:
        candidates = [*self.schedule, self.jobs[0]]
        job_id = candidates[pick % len(candidates)]
        if due:
            self.become_due(job_id)
        self.promote(job_id, clients)

    @rule(consumer=CONSUMERS, count=st.integers(1, 3), twice=st.booleans())
    def a_worker_reads_and_begins(self, consumer: str, count: int, twice: bool) -> None:
        known = len(self.messages)
        self.read(consumer, count)
        for message in self.messages[: len(self.messages) - known]:
            self.begin(message, consumer, twice)

    @rule(consumer=CONSUMERS, count=st.integers(1, 3))
    def a_worker_reads_and_dies(self, consumer: str, count: int) -> None:
        self.read(consumer, count)

    @rule(pick=ANY, consumer=CONSUMERS, twice=st.booleans(), claims=st.booleans())
    @precondition(some("messages"))
    def a_worker_begins(self, pick: int, consumer: str, twice: bool, claims: bool) -> None:
        message = self.messages[pick % len(self.messages)]
        if claims:
            self.client.xclaim(KEYS.queue, GROUP, consumer, 0, [message[0]])
        self.begin(message, consumer, twice)
        self.put_aside(message)

    @rule(pick=ANY, count=st.integers(0, 3), word=st.sampled_from(WORDS))
    @precondition(some("leases"))
    def an_attempt_speaks(self, pick: int, count: int, word: str) -> None:
        lease = self.leases[pick % len(self.leases)]
        if word == "renew":
            self.renew(lease)
        else:
            self.emit(lease, count, word == "emit again")

    @rule(
        pick=ANY,
        count=st.integers(0, 2),
        word=st.sampled_from(LAST_WORDS),
        then=st.sampled_from(THEN),
    )
    @precondition(some("leases"))
    def an_attempt_is_over(self, pick: int, count: int, word: str, then: str) -> None:
        lease = self.leases[pick % len(self.leases)]
        if word == "retry":
            self.retry(lease, FAR_MS * (pick % 2), count)
        elif word == "release":
            self.release(lease, count)
        elif word == "die":
            self.leases.remove(lease)
        else:
            self.finish(lease, "error" if word == "dead" else word, word == "dead", count)
        if then == "begin":
            self.begin((lease.message_id, lease.job_id), "b", False)
        elif then == "cancel":
            self.cancel(lease.job_id)

    @rule(
        what=st.sampled_from(CARE),
        pages=st.integers(1, 4),
        size=st.integers(1, 3),
        tolerated=st.integers(0, 2),
    )
    def somebody_tidies_up(self, what: str, pages: int, size: int, tolerated: int) -> None:
        if what == "trim":
            self.trim(pages, size, tolerated)
        elif what == "forget":
            self.forget_consumers()
        elif what == "settle":
            self.settle()
        elif self.letters:
            self.redrive()


def act(history: JobHistory, rng: random.Random) -> None:
    """Any rule, all of them alike."""
    pick, count, consumer, yes = rng.randrange(10), rng.randrange(4), rng.choice("ab"), coin(rng)
    task = rng.choice(["chat", LIMITED_TASK])
    acts: list[Callable[[], None]] = [
        lambda: history.a_client_posts(task, rng.choice([1, 2, 10**6]), rng.choice([0, FAR_MS])),
        lambda: history.a_client_asks(pick, rng.choice(WISHES)),
        lambda: history.time_passes(pick, rng.choice(CHANGES)),
        lambda: history.a_worker_reads_and_begins(consumer, 1 + count, yes),
        lambda: history.a_worker_reads_and_dies(consumer, 1 + count),
        lambda: history.a_worker_begins(pick, consumer, yes, coin(rng)),
        lambda: history.somebody_tidies_up(
            rng.choice(CARE), 1 + count, rng.randrange(1, 4), rng.randrange(3)
        ),
    ]
    if history.schedule:
        acts += [lambda: history.a_promoter_looks(pick, 1 + count % 2, yes)]
    if history.leases:
        acts += [
            lambda: history.an_attempt_speaks(pick, count, rng.choice(WORDS)),
            lambda: history.an_attempt_is_over(
                pick, count % 3, rng.choice(LAST_WORDS), rng.choice(THEN)
            ),
        ] * 2
    rng.choice(acts)()


def coin(rng: random.Random) -> bool:
    return rng.random() < 0.5


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("seed", range(16))
def test_invariants_hold_on_a_long_walk(
    name: str, seed: int, real_server: Callable[[str], RealServer]
) -> None:
    """Hypothesis knows how to make a failure short; a walk sees more in the same time."""
    rng = random.Random(seed)
    history = JobHistory(real_server(name).client)
    history.begin_some(["chat", LIMITED_TASK, LIMITED_TASK, LIMITED_TASK], rng.choice([1, 2, 9]))
    for _ in range(80):
        act(history, rng)
        history.everything_holds()


@pytest.mark.parametrize("name", REAL)
def test_invariants_hold_in_every_history(
    name: str, real_server: Callable[[str], RealServer]
) -> None:
    client = real_server(name).client
    run_state_machine_as_test(
        lambda: JobHistory(client),
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

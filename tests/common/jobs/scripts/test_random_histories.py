"""Random histories over the job scripts: the invariants hold for any order of events.

Clients post, schedule and cancel jobs. Workers read, begin, emit, save, renew, retry, release and
finish, or have no slot for a message. They die, stall past their lease, continue as superseded
attempts and repeat calls whose replies were lost. The model knows the current attempt, and Redis
must agree after every step. The invariants are those of docs/reliability.md. Time passes by editing
times in Redis.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from tests.common.history import FAR_MS, GROUP, KEYS, LIMITED_TASK
from tests.common.taking import BusySteps
from tests.support.backends import REAL, RealServer

TASKS = st.sampled_from(["chat", LIMITED_TASK, LIMITED_TASK])
MOST = st.sampled_from([1, 2, 1_000_000, 1_000_000])
DELAYS = st.sampled_from([0, 0, 0, FAR_MS])
CONSUMERS = st.sampled_from("ab")
REQUESTS = ["cancel", "cancel", "post again", "refused"]
CHANGES = ["lease", "leases", "waits", "due", "ttl"]
CARE = ["trim", "trim", "forget", "redrive", "settle"]
WORDS = ["renew", "emit", "emit again", "save", "save", "save again"]
THEN = ["", "begin", "cancel"]
LAST_WORDS = ["done", "error", "dead", "canceled", "retry", "not now", "release", "release", "die"]
ROOM = ["wait", "wait", "take", "take", "keep"]
#: Which job, message or lease: counted from the newest.
ANY = st.integers(0, 9)


def some(name: str) -> Callable[[Any], bool]:
    """Precondition: there is something to act on."""
    return lambda history: bool(getattr(history, name))


class JobHistory(BusySteps):
    """Any number of clients and workers, one queue. A few rules with choices are drawn more evenly
    than many."""

    @initialize(tasks=st.lists(TASKS, min_size=2, max_size=4), most=MOST)
    def begin_some(self, tasks: list[str], most: int) -> None:
        """Start with some jobs: an empty history takes long to become interesting."""
        for task in tasks:
            self.post(task, most, 0)
        self.read("a", len(tasks))
        for message in [*self.messages]:
            self.begin(message, "a", False)

    @rule(task=TASKS, most=MOST, delay_ms=DELAYS)
    def a_client_posts(self, task: str, most: int, delay_ms: int) -> None:
        self.post(task, most, delay_ms)

    @rule(pick=ANY, request=st.sampled_from(REQUESTS))
    @precondition(some("jobs"))
    def a_client_asks(self, pick: int, request: str) -> None:
        job_id = self.jobs[pick % len(self.jobs)]
        if request == "cancel":
            self.cancel(job_id)
        elif request == "post again":
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

    @rule(consumer=CONSUMERS, count=st.integers(1, 3), twice=st.booleans())
    def a_busy_worker_takes_the_next(self, consumer: str, count: int, twice: bool) -> None:
        self.take_next(consumer, count, twice)

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
        elif word.startswith("save"):
            value = b"%d" % (pick * count)
            self.save(lease, "ab"[count % 2], value, count, word == "save again")
        else:
            self.emit(lease, count, word == "emit again")

    @rule(pick=ANY, consumer=CONSUMERS, count=st.integers(1, 3), what=st.sampled_from(ROOM))
    @precondition(some("messages"))
    def a_task_has_no_place(self, pick: int, consumer: str, count: int, what: str) -> None:
        if what == "wait":
            self.let_wait(self.messages[pick % len(self.messages)])
        elif what == "take":
            self.take(consumer, count)
        else:
            self.keep(count)

    @rule(
        pick=ANY,
        count=st.integers(0, 2),
        word=st.sampled_from(LAST_WORDS),
        then=st.sampled_from(THEN),
    )
    @precondition(some("leases"))
    def an_attempt_is_over(self, pick: int, count: int, word: str, then: str) -> None:
        lease = self.leases[pick % len(self.leases)]
        if word in ("retry", "not now"):
            self.retry(lease, FAR_MS * (pick % 2), count, word == "not now")
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
    """Any rule, with equal probability."""
    pick, count, consumer, yes = rng.randrange(10), rng.randrange(4), rng.choice("ab"), coin(rng)
    task = rng.choice(["chat", LIMITED_TASK])
    acts: list[Callable[[], None]] = [
        lambda: history.a_client_posts(task, rng.choice([1, 2, 10**6]), rng.choice([0, FAR_MS])),
        lambda: history.a_client_asks(pick, rng.choice(REQUESTS)),
        lambda: history.time_passes(pick, rng.choice(CHANGES)),
        lambda: history.a_worker_reads_and_begins(consumer, 1 + count, yes),
        lambda: history.a_busy_worker_takes_the_next(consumer, 1 + count, yes),
        lambda: history.a_worker_reads_and_dies(consumer, 1 + count),
        lambda: history.a_worker_begins(pick, consumer, yes, coin(rng)),
        lambda: history.somebody_tidies_up(
            rng.choice(CARE), 1 + count, rng.randrange(1, 4), rng.randrange(3)
        ),
    ]
    if history.messages:
        acts += [lambda: history.a_task_has_no_place(pick, consumer, 1 + count, rng.choice(ROOM))]
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
    """Hypothesis shrinks failures; a long walk covers more in the same time."""
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

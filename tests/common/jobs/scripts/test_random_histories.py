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
from typing import ClassVar

import pytest

from common.jobs.store import Lease
from tests.support.histories.job_operations import JobOperations, Message
from tests.support.histories.jobs import FAR_MS, GROUP, KEYS, LIMITED_TASK
from tests.support.histories.machine import search, search_is_slow, walk, walks
from tests.support.servers import REAL, RealServer

TASKS = ["chat", LIMITED_TASK, LIMITED_TASK]
MOST = [1, 2, 1_000_000, 1_000_000]
REQUESTS = ["cancel", "cancel", "post again", "refused"]
CHANGES = ["lease", "leases", "waits", "due", "ttl"]
MAINTENANCE = ["trim", "trim", "consumers", "redrive", "quota"]
REPORTS = ["renew", "emit", "emit again", "save", "save", "save again"]
ENDS = ["done", "error", "dead", "canceled", "retry", "not now", "release", "release", "die"]
WAITING = ["wait", "wait", "take", "take", "touch"]


def coin(rng: random.Random) -> bool:
    return rng.random() < 0.5


class JobHistory(JobOperations):
    """Any number of clients and workers, one queue."""

    operations: ClassVar[dict[str, int]] = {
        "a_client_posts": 1,
        "a_client_asks": 1,
        "time_passes": 2,
        "a_promoter_runs": 1,
        "a_worker_reads_and_begins": 1,
        "a_busy_worker_takes_the_next": 1,
        "a_worker_reads_and_dies": 1,
        "a_worker_begins": 1,
        "a_task_has_no_slot": 1,
        "maintenance_runs": 1,
        "an_attempt_reports": 2,
        "an_attempt_is_over": 2,
    }

    def start(self, rng: random.Random) -> None:
        tasks = [rng.choice(TASKS) for _ in range(rng.randint(2, 4))]
        most = rng.choice(MOST)
        for task in tasks:
            self.post(task, most, 0)
        self.read("a", len(tasks))
        for message in [*self.messages]:
            self.begin(message, "a", False)

    def job(self, rng: random.Random) -> str:
        return rng.choice(self.jobs[:10])

    def message(self, rng: random.Random) -> Message:
        return rng.choice(self.messages[:10])

    def lease(self, rng: random.Random) -> Lease:
        return rng.choice(self.leases[:10])

    def a_client_posts(self, rng: random.Random) -> None:
        self.post(rng.choice(TASKS), rng.choice(MOST), rng.choice([0, FAR_MS]))

    def a_client_asks(self, rng: random.Random) -> None:
        request, delay_ms = rng.choice(REQUESTS), rng.choice([0, FAR_MS])
        if request == "cancel":
            self.cancel(self.job(rng))
        elif request == "post again":
            self.post_again_after_a_lost_reply(self.job(rng), delay_ms)
        else:
            self.post_with_a_key_of_another_request(delay_ms)

    def time_passes(self, rng: random.Random) -> None:
        what = rng.choice(CHANGES)
        if what == "ttl":
            self.expire(self.job(rng))
        elif what == "lease" and self.leases:
            self.expire_lease(self.lease(rng))
        elif what == "leases":
            for lease in self.leases:
                self.expire_lease(lease)
        for job_id in self.jobs:
            if what == "waits":
                self.end_delay(job_id)
            elif what == "due":
                self.become_due(job_id)

    def a_promoter_runs(self, rng: random.Random) -> bool | None:
        if not self.schedule:
            return False
        job_id = rng.choice([*self.schedule, self.jobs[0]])
        if coin(rng):
            self.become_due(job_id)
        self.promote(job_id, rng.randint(1, 2))
        return None

    def a_worker_reads_and_begins(self, rng: random.Random) -> None:
        known, consumer, twice = len(self.messages), rng.choice("ab"), coin(rng)
        self.read(consumer, rng.randint(1, 4))
        for message in self.messages[: len(self.messages) - known]:
            self.begin(message, consumer, twice)

    def a_busy_worker_takes_the_next(self, rng: random.Random) -> None:
        self.take_next(rng.choice("ab"), rng.randint(1, 4), coin(rng))

    def a_worker_reads_and_dies(self, rng: random.Random) -> None:
        self.read(rng.choice("ab"), rng.randint(1, 4))

    def a_worker_begins(self, rng: random.Random) -> bool | None:
        if not self.messages:
            return False
        message, consumer = self.message(rng), rng.choice("ab")
        if coin(rng):
            self.client.xclaim(KEYS.queue, GROUP, consumer, 0, [message[0]])
        self.begin(message, consumer, coin(rng))
        self.dead_letter(message)
        return None

    def a_task_has_no_slot(self, rng: random.Random) -> bool | None:
        if not self.messages:
            return False
        what = rng.choice(WAITING)
        if what == "wait":
            self.wait_for_slot(self.message(rng))
        elif what == "take":
            self.take(rng.choice("ab"), rng.randint(1, 4))
        else:
            self.touch(rng.randint(1, 4))
        return None

    def an_attempt_reports(self, rng: random.Random) -> bool | None:
        if not self.leases:
            return False
        lease, count, what = self.lease(rng), rng.randint(0, 3), rng.choice(REPORTS)
        if what == "renew":
            self.renew(lease)
        elif what.startswith("save"):
            value = b"%d" % rng.randrange(30)
            self.save(lease, rng.choice("ab"), value, count, what == "save again")
        else:
            self.emit(lease, count, what == "emit again")
        return None

    def an_attempt_is_over(self, rng: random.Random) -> bool | None:
        if not self.leases:
            return False
        lease, count, end = self.lease(rng), rng.randint(0, 2), rng.choice(ENDS)
        if end in ("retry", "not now"):
            self.retry(lease, rng.choice([0, FAR_MS]), count, end == "not now")
        elif end == "release":
            self.release(lease, count)
        elif end == "die":
            self.leases.remove(lease)
        else:
            self.finish(lease, "error" if end == "dead" else end, end == "dead", count)
        then = rng.choice(["", "begin", "cancel"])
        if then == "begin":
            self.begin((lease.message_id, lease.job_id), "b", False)
        elif then == "cancel":
            self.cancel(lease.job_id)
        return None

    def maintenance_runs(self, rng: random.Random) -> None:
        what = rng.choice(MAINTENANCE)
        if what == "trim":
            self.trim(rng.randint(1, 4), rng.randint(1, 3), rng.randint(0, 2))
        elif what == "consumers":
            self.remove_consumers()
        elif what == "quota":
            self.prune_quota()
        elif self.letters:
            self.redrive()


@walks(seeds=16, fast=12)
def test_invariants_hold_on_a_long_walk(
    name: str, seed: int, real_server: Callable[[str], RealServer]
) -> None:
    walk(JobHistory(real_server(name).client), seed, steps=80)


@search_is_slow
@pytest.mark.parametrize("name", REAL)
def test_invariants_hold_in_every_history(
    name: str, real_server: Callable[[str], RealServer]
) -> None:
    client, operations = real_server(name).client, JobHistory.operations
    search(lambda: JobHistory(client), operations, max_examples=25, stateful_step_count=40)

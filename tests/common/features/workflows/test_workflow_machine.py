"""Random histories over the workflow scripts: the invariants hold for any order of events.

Clients create, execute and cancel jobs. Reviewers decide, edit and undo. Workers progress, split,
complete and fail steps, apply effects outside the workflow and revert them, also for superseded
executions. Reviews expire, replies are lost and calls repeated. After every action the whole job is
read and checked, and each undo restores the state before the operation.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from tests.common.features.workflows.history import STEPS
from tests.common.features.workflows.walking import REVIEWS, Walk
from tests.support.backends import ALL, FAKE, REAL, RealServer

SAID = ("progress", "put", "split", "part", "fail")
PICK = st.integers(0, 99)
SEED = st.integers(0, 2**32 - 1)


class WorkflowHistory(RuleBasedStateMachine):
    """A few rules with choices are drawn more evenly than many; details come from a seed."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self.walk = Walk(client)

    def job(self, pick: int) -> str:
        """Preferably one that has not ended."""
        walk = self.walk
        alive = [job_id for job_id in walk.jobs if not walk.sights[job_id].ended]
        some = walk.jobs if pick % 8 == 0 or not alive else alive
        return some[pick // 8 % len(some)]

    @initialize(pick=PICK, auto_advance=st.booleans())
    def a_first_job(self, pick: int, auto_advance: bool) -> None:
        """Start with a job: an empty history takes long to become interesting."""
        rng = random.Random(pick)
        job_id = self.walk.create(REVIEWS[pick % len(REVIEWS)], auto_advance, pick % 2 == 0)
        self.walk.execute(job_id, "second", False, False, False)
        for _ in range(3):
            self.a_worker_ends(0, pick, False)
        if pick % 3:
            self.walk.execute(job_id, "review", False, False, False)
        self.walk.decide(job_id, rng, False)

    @rule(pick=PICK, auto_advance=st.booleans())
    def a_client_creates(self, pick: int, auto_advance: bool) -> None:
        if sum(not sight.ended for sight in self.walk.sights.values()) < 3:
            self.walk.create(REVIEWS[pick % len(REVIEWS)], auto_advance, pick % 2 == 0)

    @rule(pick=PICK, seed=SEED, again=st.booleans())
    def a_client_executes(self, pick: int, seed: int, again: bool) -> None:
        rng = random.Random(seed)
        job_id = self.job(pick)
        step = rng.choice(STEPS)
        self.walk.execute(job_id, step, rng.random() < 0.2, rng.random() < 0.5, again)

    @rule(pick=PICK, seed=SEED, again=st.booleans())
    def a_client_goes_on(self, pick: int, seed: int, again: bool) -> None:
        """Execute the next step, which random choices rarely do."""
        job_id = self.job(pick)
        left = [name for name in STEPS if self.walk.sights[job_id].step(name) != "complete"]
        if left:
            self.walk.execute(job_id, left[0], True, False, again)
            self.a_worker_ends(pick, seed, again)

    @rule(pick=PICK, seed=SEED, again=st.booleans())
    def a_reviewer_decides(self, pick: int, seed: int, again: bool) -> None:
        self.walk.decide(self.job(pick), random.Random(seed), again)

    @rule(pick=PICK, seed=SEED)
    def a_reviewer_cannot_decide(self, pick: int, seed: int) -> None:
        """Make more changes to one job than can be undone."""
        rng = random.Random(seed)
        for _ in range(9):
            self.walk.edit(self.job(pick), rng, False)

    @rule(pick=PICK, seed=SEED, again=st.booleans())
    def a_reviewer_edits(self, pick: int, seed: int, again: bool) -> None:
        self.walk.edit(self.job(pick), random.Random(seed), again)

    @rule(pick=PICK, seed=SEED, by_worker=st.booleans(), again=st.booleans())
    def somebody_undoes(self, pick: int, seed: int, by_worker: bool, again: bool) -> None:
        rng = random.Random(seed)
        job_id = self.job(pick)
        sight = self.walk.sights[job_id]
        tokens = [*sight.stack[:3], *(f"undo_{name}" for name in sight.undoable)]
        tokens += [rng.choice(self.walk.old_tokens), *sight.stack[3:]]
        self.walk.undo(job_id, rng.choice(tokens), by_worker, again)

    @rule(pick=PICK)
    def somebody_undoes_everything(self, pick: int) -> None:
        self.walk.undo_everything(self.job(pick))

    @rule(pick=PICK, seed=SEED, again=st.booleans())
    def a_worker_ends(self, pick: int, seed: int, again: bool) -> None:
        """Preferably the newest execution rather than an old one, which may be superseded."""
        known = self.walk.executions[self.job(pick)]
        if known:
            rng = random.Random(seed)
            newest = self.running(self.job(pick))
            running = newest if newest and rng.random() < 0.8 else rng.choice(known)
            self.walk.complete(running, rng, again)

    @rule(pick=PICK, seed=SEED, what=st.sampled_from(SAID), again=st.booleans())
    def a_worker_speaks(self, pick: int, seed: int, what: str, again: bool) -> None:
        known = self.walk.executions[self.job(pick)]
        if known:
            rng = random.Random(seed)
            newest = self.running(self.job(pick))
            running = newest if newest and rng.random() < 0.8 else rng.choice(known)
            self.walk.work(running, what, rng, again)

    def running(self, job_id: str) -> Any:
        step_and_execution = tuple(self.walk.sights[job_id].running.split(" "))
        known = self.walk.executions[job_id]
        return next((each for each in known if each[1:] == step_and_execution), None)

    @rule(
        pick=PICK, again=st.booleans(), what=st.sampled_from(["time", "time", "revert", "cancel"])
    )
    def something_else_happens(self, pick: int, again: bool, what: str) -> None:
        job_id = self.job(pick)
        if what == "time":
            self.walk.expire_review(job_id, again)
        elif what == "revert":
            self.walk.take_back(job_id)
        elif pick % 4 == 0:
            self.walk.cancel(job_id, again)


def act(history: WorkflowHistory, rng: random.Random) -> None:
    """Any rule; those that advance a job more often than those that end it."""
    pick, seed, again = rng.randrange(100), rng.getrandbits(32), rng.random() < 0.3
    acts: list[Callable[[], None]] = [
        lambda: history.a_client_executes(pick, seed, again),
        lambda: history.a_client_goes_on(pick, seed, again),
        lambda: history.a_client_goes_on(pick, seed, again),
        lambda: history.a_reviewer_decides(pick, seed, again),
        lambda: history.a_reviewer_decides(pick, seed, again),
        lambda: history.a_reviewer_edits(pick, seed, again),
        lambda: history.a_reviewer_cannot_decide(pick, seed),
        lambda: history.somebody_undoes(pick, seed, rng.random() < 0.5, again),
        lambda: history.somebody_undoes(pick, seed, rng.random() < 0.5, again),
        lambda: history.a_worker_ends(pick, seed, again),
        lambda: history.a_worker_ends(pick, seed, again),
        lambda: history.a_worker_speaks(pick, seed, rng.choice(SAID), again),
    ]
    if rng.random() < 0.1:
        acts = [
            lambda: history.a_client_creates(pick, again),
            lambda: history.a_client_creates(pick, again),
            lambda: history.somebody_undoes_everything(pick),
            lambda: history.something_else_happens(pick, again, "time"),
            lambda: history.something_else_happens(pick, again, "revert"),
            lambda: history.something_else_happens(pick, again, "cancel"),
        ]
    rng.choice(acts)()


@pytest.fixture
def client(name: str, real_server: Callable[[str], RealServer]) -> redis.Redis:
    if name == FAKE:
        return fakeredis.FakeRedis(server=fakeredis.FakeServer(version=(7, 2)))
    return real_server(name).client


#: fakeredis takes thirty times as long for the same script.
ACTS = {FAKE: 25}


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name in ALL for seed in range(4 if name == FAKE else 8)]
)
def test_invariants_hold_on_a_long_walk(name: str, seed: int, client: redis.Redis) -> None:
    """Hypothesis shrinks failures; a long walk covers more in the same time."""
    rng = random.Random(seed)
    history = WorkflowHistory(client)
    history.a_first_job(rng.randrange(100), seed % 2 == 0)
    for _ in range(ACTS.get(name, 150)):
        act(history, rng)


@pytest.mark.parametrize("name", REAL)
def test_invariants_hold_in_every_history(client: redis.Redis) -> None:
    run_state_machine_as_test(
        lambda: WorkflowHistory(client),
        settings=settings(
            max_examples=20,
            stateful_step_count=30,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Random histories over the workflow scripts: the invariants hold for any order of events.

Clients create, execute and cancel jobs. Reviewers decide, edit and undo. Workers progress, split,
complete and fail steps, apply effects outside the workflow and revert them, also for superseded
executions. Reviews expire, replies are lost and calls repeated. After every action the whole job is
read and checked, and each undo restores the state before the operation.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

import pytest

from common.features.workflows.types import StepExecution
from tests.support.histories.machine import blocking_client, search, search_is_slow, walk, walks
from tests.support.histories.workflow_operations import REVIEWS, WorkflowOperations
from tests.support.histories.workflows import STEPS
from tests.support.servers import FAKE, REAL, RealServer

REPORTS = ("progress", "put", "split", "part", "fail")


def again(rng: random.Random) -> bool:
    """Whether the reply is lost."""
    return rng.random() < 0.3


class WorkflowHistory(WorkflowOperations):
    """Operations that advance a job are chosen more often than those that end it."""

    operations: ClassVar[dict[str, int]] = {
        "a_client_executes": 9,
        "a_client_continues": 18,
        "a_reviewer_decides": 18,
        "a_reviewer_edits": 9,
        "a_reviewer_edits_often": 9,
        "an_operation_is_undone": 18,
        "a_worker_ends": 18,
        "a_worker_reports": 9,
        "a_client_creates": 4,
        "everything_is_undone": 2,
        "a_review_expires": 2,
        "effects_are_reverted": 2,
        "a_client_cancels": 2,
    }

    def job(self, rng: random.Random) -> str:
        """Preferably one that has not ended."""
        alive = [job_id for job_id in self.jobs if not self.views[job_id].ended]
        return rng.choice(self.jobs if rng.random() < 0.125 or not alive else alive)

    def execution(self, job_id: str, rng: random.Random) -> StepExecution | None:
        """Preferably the running one rather than an old one, which may be superseded."""
        current = tuple(self.views[job_id].running.split(" "))
        known = self.executions[job_id]
        running = [each for each in known if each[1:3] == current]
        some = running if running and rng.random() < 0.8 else known
        return rng.choice(some) if some else None

    def start(self, rng: random.Random) -> None:
        job_id = self.create(rng.choice(REVIEWS), rng.random() < 0.5, rng.random() < 0.5)
        self.execute(job_id, "second", False, False, False)
        for _ in range(3):
            self.a_worker_ends(rng)
        if rng.random() < 0.7:
            self.execute(job_id, "review", False, False, False)
        self.decide(job_id, rng, False)

    def a_client_creates(self, rng: random.Random) -> None:
        if sum(not view.ended for view in self.views.values()) < 3:
            self.create(rng.choice(REVIEWS), rng.random() < 0.5, rng.random() < 0.5)

    def a_client_executes(self, rng: random.Random) -> None:
        strict, discard = rng.random() < 0.2, rng.random() < 0.5
        self.execute(self.job(rng), rng.choice(STEPS), strict, discard, again(rng))

    def a_client_continues(self, rng: random.Random) -> None:
        """Execute the next step, which random choices rarely do."""
        job_id = self.job(rng)
        left = [name for name in STEPS if self.views[job_id].step(name) != "complete"]
        if left:
            self.execute(job_id, left[0], True, False, again(rng))
            self._complete_one(job_id, rng)

    def a_client_cancels(self, rng: random.Random) -> None:
        if rng.random() < 0.25:
            self.cancel(self.job(rng), again(rng))

    def a_reviewer_decides(self, rng: random.Random) -> None:
        self.decide(self.job(rng), rng, again(rng))

    def a_reviewer_edits(self, rng: random.Random) -> None:
        self.edit(self.job(rng), rng, again(rng))

    def a_reviewer_edits_often(self, rng: random.Random) -> None:
        """Make more changes to one job than can be undone."""
        job_id = self.job(rng)
        for _ in range(9):
            self.edit(job_id, rng, False)

    def an_operation_is_undone(self, rng: random.Random) -> None:
        job_id = self.job(rng)
        view = self.views[job_id]
        tokens = [*view.stack[:3], *(f"undo_{name}" for name in view.undoable)]
        tokens += [rng.choice(self.old_tokens), *view.stack[3:]]
        self.undo(job_id, rng.choice(tokens), rng.random() < 0.5, again(rng))

    def everything_is_undone(self, rng: random.Random) -> None:
        self.undo_everything(self.job(rng))

    def a_worker_ends(self, rng: random.Random) -> None:
        self._complete_one(self.job(rng), rng)

    def _complete_one(self, job_id: str, rng: random.Random) -> None:
        if running := self.execution(job_id, rng):
            self.complete(running, rng, again(rng))

    def a_worker_reports(self, rng: random.Random) -> None:
        if running := self.execution(self.job(rng), rng):
            self.work(running, rng.choice(REPORTS), rng, again(rng))

    def a_review_expires(self, rng: random.Random) -> None:
        self.expire_review(self.job(rng), again(rng))

    def effects_are_reverted(self, rng: random.Random) -> None:
        self.revert_effects(self.job(rng))


@walks(seeds=8, fast=3, on_fakeredis=2)
def test_invariants_hold_on_a_long_walk(
    name: str, seed: int, real_server: Callable[[str], RealServer]
) -> None:
    """fakeredis takes thirty times as long for the same script."""
    history = WorkflowHistory(blocking_client(name, real_server))
    walk(history, seed, steps=25 if name == FAKE else 150)


@search_is_slow
@pytest.mark.parametrize("name", REAL)
def test_invariants_hold_in_every_history(
    name: str, real_server: Callable[[str], RealServer]
) -> None:
    client, operations = real_server(name).client, WorkflowHistory.operations
    search(lambda: WorkflowHistory(client), operations, max_examples=20, stateful_step_count=30)

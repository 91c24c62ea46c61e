"""Actions of a random history of workflow jobs; each is checked by its effect."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import redis

from common import codec
from common.contracts.rag import RagKeys
from common.contracts.workflow.statuses import UNDO_DEPTH, Action, ItemStatus, OnTimeout, ReviewMode
from common.features.workflows.definitions import ReviewOptions
from common.features.workflows.effects import EffectStore, TermChange, undo_token_for
from common.features.workflows.scripts import WORKFLOW_SCRIPT
from common.features.workflows.store import WorkflowStore
from common.features.workflows.types import (
    DecideCommand,
    Decision,
    EditCommand,
    ExecuteCommand,
    IdempotencyClaim,
    NewItem,
    StepExecution,
    StepIds,
    StepResult,
    WorkflowAnswer,
    WorkflowOutcome,
)
from tests.support.histories.machine import History, Script, now
from tests.support.histories.workflows import (
    JOBS,
    KEYS,
    PROPOSES,
    REVIEW,
    STEPS,
    View,
    check,
    read_view,
    unchanged,
)
from tests.support.store.workflows import ADMISSION, hooked, new_workflow

RAG = RagKeys("notes")
OK = WorkflowAnswer.OK
#: Answers after which everything must be unchanged.
IDLE = {WorkflowAnswer.MISSING, WorkflowAnswer.LOST, WorkflowAnswer.REUSED, WorkflowAnswer.ALREADY}
REVIEWS = (
    ReviewOptions(),
    ReviewOptions(ReviewMode.AUTO, 0.8),
    *(ReviewOptions(timeout_s=60, on_timeout=ending) for ending in OnTimeout),
)
CONFIDENCES = (0.1, 0.5, 0.8, 0.95)


class WorkflowOperations(History):
    """A few jobs, clients, reviewers and workers; calls with lost replies are repeated."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.script = Script(client, JOBS, WORKFLOW_SCRIPT)
        self.store = WorkflowStore(client, JOBS, self.script)
        self.effects = EffectStore(client, self.store)
        self.jobs: list[str] = []
        #: All executions so far.
        self.executions: dict[str, list[StepExecution]] = {}
        self.views: dict[str, View] = {}
        #: States of items before an operation, by job, token and item.
        self.priors: dict[tuple[str, str, str], tuple[Any, ...]] = {}
        #: Jobs that may have dropped operations.
        self.capped: set[str] = set()
        #: Items that a step has changed without undo data.
        self.for_good: set[str] = set()
        #: Tokens that were used or dropped.
        self.old_tokens: list[str] = ["undo_p_001", "undo_ffffffff", "undo_"]
        self._numbers = itertools.count(1)

    # -- calls -----------------------------------------------------------------------------

    def ids(self) -> StepIds:
        number = next(self._numbers)
        return StepIds(f"ex_{number:08x}", f"00000000-0000-4000-8000-{number:012x}")

    def once(self) -> IdempotencyClaim:
        return IdempotencyClaim(f"idempotency.wf:x:{next(self._numbers)}", "print", 600)

    def digits(self) -> str:
        return f"{next(self._numbers) + 0xA0000000:08x}"

    def act(
        self, job_id: str, call: Coroutine[Any, Any, WorkflowOutcome], again: bool
    ) -> WorkflowOutcome:
        """Run an operation on a job, perhaps twice, and check its effect."""
        before = self.views[job_id]
        outcome = now(call)
        after = read_view(self.client, job_id)
        idle = outcome.answer in IDLE or (
            outcome.answer is WorkflowAnswer.REFUSED
            and outcome.facts["code"] != "review_required"  # then the review was entered
        )
        if idle:
            assert unchanged(before, after), outcome
        if again:
            self.script.repeat()
            repeated = read_view(self.client, job_id)
            assert unchanged(after, repeated), outcome
        self.notice(job_id, before, after)
        return outcome

    def notice(self, job_id: str, before: View, after: View) -> None:
        """Remember a change, and check it."""
        check(self.client, job_id, after, self.for_good)
        for name, state in after.items.items():
            former = before.items.get(name)
            if former and before.numbers[name] == after.numbers[name]:
                assert state.version >= former.version
                if state.content != former.content:
                    assert state.version > former.version
        fresh = [token for token in after.stack if token not in before.stack]
        known: set[str] = set()
        for token in reversed(fresh):
            for item in after.operations[token].get("items") or ():
                # Otherwise an intermediate state was not observed.
                if item not in known and before.numbers.get(item) == after.numbers[item]:
                    self.priors[job_id, token, item] = before.items[item].content
                known.add(item)
        if len(after.stack) == UNDO_DEPTH:
            self.capped.add(job_id)
        self.old_tokens += [token for token in before.stack if token not in after.stack]
        for name in STEPS:
            running = StepExecution(job_id, name, after.step(name, "execution"))
            if running.execution and running not in self.executions[job_id]:
                self.executions[job_id].append(running)
        self.views[job_id] = after

    # -- clients ---------------------------------------------------------------------------

    def create(self, review: ReviewOptions, auto_advance: bool, webhook: bool) -> str:
        new = new_workflow(
            review=review,
            auto_advance=auto_advance,
            webhook=hooked("step.started", "item.changed", "undo.applied") if webhook else None,
        )
        made = now(self.store.create(new, self.once(), self.ids(), ADMISSION))
        job_id = str(made.facts["job_id"])
        assert job_id not in self.jobs
        self.jobs.append(job_id)
        self.executions[job_id] = []
        self.views[job_id] = read_view(self.client, job_id)
        self.notice(job_id, self.views[job_id], self.views[job_id])
        return job_id

    def execute(self, job_id: str, step: str, strict: bool, discard: bool, again: bool) -> None:
        wanted = ExecuteCommand(job_id, step, None, strict, discard)
        call = self.store.execute(wanted, self.once(), self.ids(), ADMISSION)
        outcome = self.act(job_id, call, again)
        if outcome.answer is OK and outcome.facts["started"]:
            assert self.views[job_id].running

    def cancel(self, job_id: str, again: bool) -> None:
        self.act(job_id, self.store.cancel(job_id, self.once()), again)

    # -- reviewers -------------------------------------------------------------------------

    def items(self, job_id: str) -> list[str]:
        return [name for name in self.views[job_id].items if name.startswith("p_")]

    def decide(self, job_id: str, rng: random.Random, again: bool) -> None:
        known = [*self.items(job_id), "p_404"]
        chosen = rng.sample(known, rng.randint(0, len(known)))
        decisions = [
            Decision(name, rng.choice([*Action]), rng.choice((0, 1, 2))) for name in chosen
        ]
        command: dict[str, Any] = {"decisions": decisions}
        if rng.random() < 0.5:
            command = {
                "action": rng.choice([*Action]),
                "status": rng.choice((None, ItemStatus.PROPOSED, ItemStatus.APPROVED)),
                "min_confidence": rng.choice((None, 0.5, 0.9)),
            }
        wanted = DecideCommand(
            job_id, "me", token=self.digits(), reviewing=rng.random() < 0.5,
            finalize=rng.random() < 0.2, **command,
        )  # fmt: skip
        before = self.views[job_id]
        call = self.store.decide(wanted, self.once(), self.ids(), ADMISSION)
        outcome = self.act(job_id, call, again)
        if outcome.answer is not OK:
            assert outcome.facts["code"] == "not_reviewable"
            return
        assert before.step(PROPOSES) == "complete" != before.step(REVIEW)
        after = self.views[job_id]
        assert outcome.facts["completed"] == (after.step(REVIEW) == "complete")
        pending = sum(1 for state in after.items.values() if state.status == "proposed")
        assert outcome.facts["pending"] == pending
        if after.step(REVIEW) == "complete":
            assert pending == 0

    def edit(self, job_id: str, rng: random.Random, again: bool) -> None:
        names = self.items(job_id)
        name = rng.choice(names if names and rng.random() < 0.9 else ["f_001", "p_404"])
        state = self.views[job_id].items.get(name)
        version = state.version if state and rng.random() < 0.9 else 1
        content = codec.dumps({"n": rng.randint(0, 99)})
        wanted = EditCommand(
            job_id, name, content, version, rng.choice(CONFIDENCES), rng.random() < 0.5, "me",
            self.digits(),
        )  # fmt: skip
        outcome = self.act(
            job_id, self.store.edit(wanted, self.once(), self.ids(), ADMISSION), again
        )
        if outcome.answer is OK:
            after = self.views[job_id].items[name]
            assert (after.payload, after.version) == (content, version + 1)
            assert after.edited

    def undo(self, job_id: str, token: str, by_worker: bool, again: bool) -> WorkflowOutcome:
        before = self.views[job_id]
        own = token
        if token.startswith("undo_p_"):
            own = before.undoable.get(token.removeprefix("undo_"), "").lstrip("!")
        if by_worker:
            call = self.store.undo_with_effects(job_id, token)
        else:
            call = self.store.undo(job_id, token, self.once())
        outcome = self.act(job_id, call, again)
        after = self.views[job_id]
        if outcome.answer is WorkflowAnswer.MISSING:
            assert own not in before.stack or (by_worker and own != token)
        elif outcome.answer is OK:
            assert own in before.stack
            assert not outcome.facts["undone"] or "running" not in before.statuses()[3:]
            for name in outcome.facts["undone"]:
                state = after.items[name]
                assert state.version == before.items[name].version + 1
                prior = self.priors.get((job_id, own, name))
                assert prior is None or state.content == prior
        elif outcome.answer is WorkflowAnswer.BEYOND:
            assert unchanged(before, after)
        return outcome

    def undo_everything(self, job_id: str) -> None:
        """Undo from the newest; decided, edited and applied items are as proposed afterwards."""
        while self.views[job_id].stack:
            token = self.views[job_id].stack[0]
            outcome = self.undo(job_id, token, True, False)
            if outcome.answer is not OK:
                return  # a step is running, or something was changed without undo data
        for name in self.items(job_id):
            state = self.views[job_id].items[name]
            if job_id not in self.capped and state.status not in ("applied", "failed"):
                assert (state.status, state.edited) == ("proposed", False)

    # -- workers ---------------------------------------------------------------------------

    def complete(self, running: StepExecution, rng: random.Random, again: bool) -> None:
        job_id = running.job_id
        result = StepResult("done", [NewItem(b"{}")] * rng.randint(0, 2))
        if running.step == PROPOSES:
            result = StepResult("proposed", [
                NewItem(b'{"n":%d}' % number, "proposed", rng.choice(CONFIDENCES))
                for number in range(rng.randint(0, 5))
            ])  # fmt: skip
        elif running.step == "apply":
            result = self._applied(running, rng)
        call = self.store.complete(running, result, self.ids(), 600)
        before = self.views[job_id]
        names = set() if result.undo_token else {name for name, _, _ in result.changed}
        self.for_good |= names
        outcome = self.act(job_id, call, again)
        if outcome.answer is OK:
            assert before.running == f"{running.step} {running.execution}"
            assert self.views[job_id].step(running.step) == "complete"
            assert not names & set(self.views[job_id].undoable)

    def _applied(self, running: StepExecution, rng: random.Random) -> StepResult:
        job_id, token = running.job_id, ""
        kind = rng.choice(("for good", "undoable", "effects", "effects"))
        if kind == "undoable":
            token = f"undo_{self.digits()}"
        elif kind == "effects":
            token = undo_token_for(running.execution)
            number = next(self._numbers)
            change = TermChange(f"t{number}", b"", b"%d" % number)
            self.act(job_id, self.effects.change_terms(running, RAG, [change]), rng.random() < 0.3)
        states = self.views[job_id].items
        changed = [
            (name, "applied", states[name].version)
            for name in self.items(job_id)
            if states[name].status == "approved"
        ]
        return StepResult("applied", [NewItem(b"{}")], changed=changed, undo_token=token)

    def work(self, running: StepExecution, what: str, rng: random.Random, again: bool) -> None:
        """Everything that a worker does before it ends a step."""
        store = self.store
        said: dict[str, Callable[[], Coroutine[Any, Any, WorkflowOutcome]]] = {
            "progress": lambda: store.progress(running, rng.randint(0, 9), 9),
            "put": lambda: store.put(running, rng.choice("ab"), b"x"),
            "split": lambda: store.split(running, [self.ids().core_job], 600),
            "part": lambda: store.finish_part(running, rng.randint(0, 1), b"y"),
            "fail": lambda: store.fail(running, b'[{"code":"step_failed"}]', rng.random() < 0.3),
        }
        self.act(running.job_id, said[what](), again)
        if what == "split":
            for part in rng.sample(range(3), rng.randint(0, 3)):
                self.act(running.job_id, store.finish_part(running, part, b"z"), again)

    def revert_effects(self, job_id: str) -> None:
        """Revert incomplete effects of executions."""
        now(self.effects.revert(job_id))
        after = read_view(self.client, job_id)
        self.notice(job_id, self.views[job_id], after)

    def expire_review(self, job_id: str, again: bool) -> None:
        if self.views[job_id].in_review:
            self.client.zadd(KEYS.reviews, {job_id: 1})
        self.act(job_id, self.store.expire_review(job_id, self.ids(), ADMISSION), again)

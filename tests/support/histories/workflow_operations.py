"""A random history of workflow jobs: its operations; each is checked by its effect."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import redis

from sluice.common import codec
from sluice.common.contracts.rag import RagKeys
from sluice.common.contracts.workflow.statuses import (
    UNDO_DEPTH,
    Action,
    ItemStatus,
    OnTimeout,
    ReviewMode,
)
from sluice.common.features.workflows.definitions import ReviewOptions
from sluice.common.features.workflows.effects import EffectStore, TermChange, undo_token_for
from sluice.common.features.workflows.scripts import WORKFLOW_SCRIPT
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import (
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
from tests.support.histories.machine import JOBS, ObservedHistory, now
from tests.support.histories.workflows import KEYS, PROPOSES, REVIEW, STEPS, View, check, read_view
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


class WorkflowHistory(ObservedHistory[View]):
    """Clients create, execute and cancel jobs. Reviewers decide, edit and undo. Workers progress,
    split, complete and fail steps, apply effects outside the workflow and revert them, also for
    superseded executions. Reviews expire. Each undo restores the state before the operation.

    Operations that advance a job are chosen more often than those that end it.
    """

    lua = WORKFLOW_SCRIPT
    operations: ClassVar[dict[str, int]] = {
        "execute": 9,
        "execute_next": 18,
        "decide": 18,
        "edit": 9,
        "edit_often": 9,
        "undo": 18,
        "complete": 18,
        "report": 9,
        "create": 4,
        "undo_everything": 2,
        "expire_review": 2,
        "revert_effects": 2,
        "cancel": 2,
    }

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.store = WorkflowStore(client, JOBS, self.script)
        self.effects = EffectStore(client, self.store)
        #: All executions so far.
        self.executions: dict[str, list[StepExecution]] = {}
        #: States of items before an operation, by job, token and item.
        self.priors: dict[tuple[str, str, str], tuple[Any, ...]] = {}
        #: Jobs that may have dropped operations.
        self.capped: set[str] = set()
        #: Items that a step has changed without undo data.
        self.for_good: set[str] = set()
        #: Tokens that were used or dropped.
        self.old_tokens: list[str] = ["undo_p_001", "undo_ffffffff", "undo_"]

    def job(self) -> str:
        """Preferably one that has not ended."""
        return self.one_of([job_id for job_id, view in self.views.items() if not view.ended])

    def execution(self, job_id: str) -> StepExecution | None:
        """Preferably the running one rather than an old one, which may be superseded."""
        current = tuple(self.views[job_id].running.split(" "))
        known = self.executions[job_id]
        running = [each for each in known if each[1:3] == current]
        some = running if running and self.chance(0.8) else known
        return self.rng.choice(some) if some else None

    def items(self, job_id: str) -> list[str]:
        return [name for name in self.views[job_id].items if name.startswith("p_")]

    def ids(self) -> StepIds:
        number = next(self.numbers)
        return StepIds(f"ex_{number:08x}", f"00000000-0000-4000-8000-{number:012x}")

    def once(self) -> IdempotencyClaim:
        return IdempotencyClaim(f"idempotency.wf:x:{next(self.numbers)}", "print", 600)

    def digits(self) -> str:
        return f"{next(self.numbers) + 0xA0000000:08x}"

    def read(self, name: str) -> View:
        return read_view(self.client, name)

    def has_no_effect(self, outcome: WorkflowOutcome) -> bool:
        if outcome.answer is WorkflowAnswer.REFUSED:
            return bool(outcome.facts["code"] != "review_required")  # then the review was entered
        return outcome.answer in IDLE

    def notice(self, name: str, after: View) -> None:
        before = self.views.get(name, after)
        check(self.client, name, after, self.for_good)
        for item, state in after.items.items():
            former = before.items.get(item)
            if former and before.numbers[item] == after.numbers[item]:
                assert state.version >= former.version
                if state.content != former.content:
                    assert state.version > former.version
        fresh = [token for token in after.stack if token not in before.stack]
        known: set[str] = set()
        for token in reversed(fresh):
            for item in after.operations[token].get("items") or ():
                # Otherwise an intermediate state was not observed.
                if item not in known and before.numbers.get(item) == after.numbers[item]:
                    self.priors[name, token, item] = before.items[item].content
                known.add(item)
        if len(after.stack) == UNDO_DEPTH:
            self.capped.add(name)
        self.old_tokens += [token for token in before.stack if token not in after.stack]
        for step in STEPS:
            running = StepExecution(name, step, after.step(step, "execution"))
            if running.execution and running not in self.executions[name]:
                self.executions[name].append(running)
        super().notice(name, after)

    # -- clients ---------------------------------------------------------------------------

    def start(self) -> None:
        self.create()
        [job_id] = self.views
        self._execute(job_id, "second", False, False)
        for _ in range(3):
            self.complete()
        if self.chance(0.7):
            self._execute(job_id, "review", False, False)
        self.decide()

    def create(self) -> None:
        if sum(not view.ended for view in self.views.values()) >= 3:
            return
        webhook = hooked("step.started", "item.changed", "undo.applied")
        new = new_workflow(
            review=self.rng.choice(REVIEWS),
            auto_advance=self.chance(0.5),
            webhook=webhook if self.chance(0.5) else None,
        )
        made = now(self.store.create(new, self.once(), self.ids(), ADMISSION))
        job_id = str(made.facts["job_id"])
        assert job_id not in self.views
        self.executions[job_id] = []
        self.notice(job_id, self.read(job_id))

    def execute(self) -> None:
        self._execute(self.job(), self.rng.choice(STEPS), self.chance(0.2), self.chance(0.5))

    def execute_next(self) -> None:
        """Execute and complete the next step, which random choices rarely do."""
        job_id = self.job()
        left = [name for name in STEPS if self.views[job_id].step(name) != "complete"]
        if left:
            self._execute(job_id, left[0], True, False)
            self._complete(job_id)

    def _execute(self, job_id: str, step: str, strict: bool, discard: bool) -> None:
        wanted = ExecuteCommand(job_id, step, None, strict, discard)
        call = self.store.execute(wanted, self.once(), self.ids(), ADMISSION)
        outcome = self.act(job_id, call)
        if outcome.answer is OK and outcome.facts["started"]:
            assert self.views[job_id].running

    def cancel(self) -> None:
        if self.chance(0.25):
            job_id = self.job()
            self.act(job_id, self.store.cancel(job_id, self.once()))

    # -- reviewers -------------------------------------------------------------------------

    def decide(self) -> None:
        job_id, rng = self.job(), self.rng
        known = [*self.items(job_id), "p_404"]
        chosen = rng.sample(known, rng.randint(0, len(known)))
        command: dict[str, Any] = {
            "decisions": [
                Decision(name, rng.choice([*Action]), rng.choice((0, 1, 2))) for name in chosen
            ]
        }
        if self.chance(0.5):
            command = {
                "action": rng.choice([*Action]),
                "status": rng.choice((None, ItemStatus.PROPOSED, ItemStatus.APPROVED)),
                "min_confidence": rng.choice((None, 0.5, 0.9)),
            }
        command |= {"reviewing": self.chance(0.5), "finalize": self.chance(0.2)}
        wanted = DecideCommand(job_id, "me", token=self.digits(), **command)
        before = self.views[job_id]
        call = self.store.decide(wanted, self.once(), self.ids(), ADMISSION)
        outcome = self.act(job_id, call)
        if outcome.answer is not OK:
            assert outcome.facts["code"] == "not_reviewable"
            return
        assert before.step(PROPOSES) == "complete" != before.step(REVIEW)
        after = self.views[job_id]
        assert outcome.facts["completed"] == (after.step(REVIEW) == "complete")
        pending = sum(1 for state in after.items.values() if state.status == "proposed")
        assert outcome.facts["pending"] == pending
        assert pending == 0 or after.step(REVIEW) != "complete"

    def edit(self) -> None:
        self._edit(self.job())

    def edit_often(self) -> None:
        """Make more changes to one job than can be undone."""
        job_id = self.job()
        for _ in range(9):
            self._edit(job_id)

    def _edit(self, job_id: str) -> None:
        names = self.items(job_id)
        name = self.rng.choice(names if names and self.chance(0.9) else ["f_001", "p_404"])
        state = self.views[job_id].items.get(name)
        version = state.version if state and self.chance(0.9) else 1
        content = codec.dumps({"n": self.rng.randint(0, 99)})
        how = (self.rng.choice(CONFIDENCES), self.chance(0.5), "me", self.digits())
        wanted = EditCommand(job_id, name, content, version, *how)
        call = self.store.edit(wanted, self.once(), self.ids(), ADMISSION)
        if self.act(job_id, call).answer is OK:
            after = self.views[job_id].items[name]
            assert (after.payload, after.version, after.edited) == (content, version + 1, True)

    def undo(self) -> None:
        job_id = self.job()
        view = self.views[job_id]
        tokens = [*view.stack[:3], *(f"undo_{name}" for name in view.undoable)]
        tokens += [self.rng.choice(self.old_tokens), *view.stack[3:]]
        self._undo(job_id, self.rng.choice(tokens), self.chance(0.5))

    def _undo(self, job_id: str, token: str, by_worker: bool) -> WorkflowOutcome:
        before, own = self.views[job_id], token
        if token.startswith("undo_p_"):
            own = before.undoable.get(token.removeprefix("undo_"), "").lstrip("!")
        if by_worker:
            call = self.store.undo_with_effects(job_id, token)
        else:
            call = self.store.undo(job_id, token, self.once())
        outcome = self.act(job_id, call)
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
            assert before.content() == after.content()
        return outcome

    def undo_everything(self) -> None:
        """Undo from the newest; decided, edited and applied items are as proposed afterwards."""
        job_id = self.job()
        while stack := self.views[job_id].stack:
            if self._undo(job_id, stack[0], True).answer is not OK:
                return  # a step is running, or something was changed without undo data
        for name in self.items(job_id):
            state = self.views[job_id].items[name]
            if job_id not in self.capped and state.status not in ("applied", "failed"):
                assert (state.status, state.edited) == ("proposed", False)

    # -- workers ---------------------------------------------------------------------------

    def complete(self) -> None:
        self._complete(self.job())

    def _complete(self, job_id: str) -> None:
        running = self.execution(job_id)
        if running is None:
            return
        result = StepResult("done", [NewItem(b"{}")] * self.rng.randint(0, 2))
        if running.step == PROPOSES:
            confidences = self.rng.choices(CONFIDENCES, k=self.rng.randint(0, 5))
            items = [
                NewItem(b'{"n":%d}' % number, "proposed", confidence)
                for number, confidence in enumerate(confidences)
            ]
            result = StepResult("proposed", items)
        elif running.step == "apply":
            result = self._applied(running)
        before = self.views[job_id]
        names = set() if result.undo_token else {name for name, _, _ in result.changed}
        self.for_good |= names
        outcome = self.act(job_id, self.store.complete(running, result, self.ids(), 600))
        if outcome.answer is OK:
            assert before.running == f"{running.step} {running.execution}"
            assert self.views[job_id].step(running.step) == "complete"
            assert not names & set(self.views[job_id].undoable)

    def _applied(self, running: StepExecution) -> StepResult:
        job_id, token = running.job_id, ""
        kind = self.rng.choice(("for good", "undoable", "effects", "effects"))
        if kind == "undoable":
            token = f"undo_{self.digits()}"
        elif kind == "effects":
            token = undo_token_for(running.execution)
            number = next(self.numbers)
            change = TermChange(f"t{number}", b"", b"%d" % number)
            self.act(job_id, self.effects.change_terms(running, RAG, [change]))
        states = self.views[job_id].items
        changed = [
            (name, "applied", states[name].version)
            for name in self.items(job_id)
            if states[name].status == "approved"
        ]
        return StepResult("applied", [NewItem(b"{}")], changed=changed, undo_token=token)

    def report(self) -> None:
        """Everything that a worker does before it ends a step."""
        job_id, store, rng = self.job(), self.store, self.rng
        running = self.execution(job_id)
        if running is None:
            return
        reports: dict[str, Callable[[], Coroutine[Any, Any, WorkflowOutcome]]] = {
            "progress": lambda: store.progress(running, rng.randint(0, 9), 9),
            "put": lambda: store.put(running, rng.choice("ab"), b"x"),
            "split": lambda: store.split(running, [self.ids().core_job], 600),
            "part": lambda: store.finish_part(running, rng.randint(0, 1), b"y"),
            "fail": lambda: store.fail(running, b'[{"code":"step_failed"}]', self.chance(0.3)),
        }
        what = rng.choice([*reports])
        self.act(job_id, reports[what]())
        if what == "split":
            for part in rng.sample(range(3), rng.randint(0, 3)):
                self.act(job_id, store.finish_part(running, part, b"z"))

    def revert_effects(self) -> None:
        """Revert incomplete effects of executions."""
        job_id = self.job()
        now(self.effects.revert(job_id))
        self.notice(job_id, self.read(job_id))

    def expire_review(self) -> None:
        job_id = self.job()
        if self.views[job_id].in_review:
            self.client.zadd(KEYS.reviews, {job_id: 1})
        self.act(job_id, self.store.expire_review(job_id, self.ids(), ADMISSION))

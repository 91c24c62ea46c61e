"""Crash recovery: after a crash at any step the next attempt continues and repeats no effect."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.worker.errors import AttemptLost, TransientError
from sluice.worker.execution.context import JobContext
from sluice.worker.execution.executor import Outcome
from sluice.worker.features.agent.types import AgentLimits
from sluice.worker.features.model.types import ChatRequest, Completion, Sink
from sluice.worker.queue.claim import ClaimedJob
from tests.support.worker.harness import MakeWorker, WorkerHarness, within
from tests.support.worker.model_tasks import calls, says
from tests.support.worker.tools import AgentHarness, events

pytestmark = pytest.mark.fakeredis_only
#: The model's answers, by the number of its answers in the request.
SCRIPT = [
    calls(("once", {"n": 1}), ("calculator", {"expression": "1+1"}), text="First."),
    calls(("keyed", {"n": 2}), ("once", {"n": 3}), text="Second."),
    says("All done."),
]


async def by_history(context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
    turn = SCRIPT[sum(message["role"] == "assistant" for message in request.messages)]
    await sink.text(turn.text)
    return turn


def agent() -> AgentHarness:
    made = AgentHarness(*[by_history] * 10, names=["once", "keyed", "calculator"])
    made.add("once")
    made.add("keyed", takes_key=True)
    return made


class Dying:
    """Ends the first attempt before or after its n-th save, as SIGKILL would.

    `at_ms` replaces the saved time.
    """

    def __init__(self, agent: AgentHarness, at: int, after: bool, at_ms: int | None = None) -> None:
        self.saves: list[str] = []
        self._chat = agent.chat
        self._at, self._after, self._at_ms = at, after, at_ms
        agent.registry.add("chat", self.chat)

    async def chat(self, context: JobContext, payload: dict[str, Any]) -> Any:
        if context.attempt == 1:
            save = context.save

            async def save_or_die(name: str, value: Any) -> None:
                self.saves.append(name)
                dies = len(self.saves) == self._at
                if dies and not self._after:
                    raise AttemptLost
                if self._at_ms is not None and "at_ms" in value:
                    value = {**value, "at_ms": self._at_ms}
                await save(name, value)
                if dies:
                    raise AttemptLost

            context.save = save_or_die  # type: ignore[method-assign]
        return await self._chat(context, payload)


async def run_twice(worker: WorkerHarness) -> tuple[str, dict[str, Any]]:
    first = await worker.attempt()
    assert await within(10, worker.executor.run(first)) is Outcome.LOST
    lease = await worker.take_over(first.lease)
    again = ClaimedJob(lease, "chat", "chat", first.payload)
    assert await within(10, worker.executor.run(again)) is Outcome.DONE
    return first.lease.job_id, await worker.result(first.lease.job_id)


async def test_a_run_without_a_crash_saves_every_step(make_worker: MakeWorker) -> None:
    made = agent()
    saves = Dying(made, 0, after=False).saves
    worker = make_worker(registry=made.registry)
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.DONE
    assert saves == [
        "agent.1",
        *("agent.1.0", "agent.1.0", "agent.1.1"),  # intent and result; a result
        "agent.2",
        *("agent.2.0", "agent.2.1", "agent.2.1"),
    ]
    assert made.calls == [f"{job_id}:agent.{step}" for step in ("1.0", "2.0", "2.1")]


#: Saves that are intents, after which the call may or may not have run.
INTENTS = {2: "1.0", 7: "2.1"}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 9))
async def test_a_crash_at_any_step_repeats_nothing(
    make_worker: MakeWorker, at: int, after: bool
) -> None:
    made = agent()
    Dying(made, at, after)
    job_id, result = await run_twice(make_worker(registry=made.registry))
    assert (result["text"], result["finish_reason"]) == ("All done.", "stop")
    assert [step["name"] for step in result["steps"]] == ["once", "calculator", "keyed", "once"]
    # A call that runs at most once: not at all, if its intent was the last save.
    for step in ("1.0", "2.1"):
        made_times = made.calls.count(f"{job_id}:agent.{step}")
        dead_in_intent = INTENTS.get(at) == step and after
        dead_in_result = INTENTS.get(at - 1) == step and not after
        assert made_times == (0 if dead_in_intent else 1)
        where = int(step[0]), f"c{step[-1]}"
        [reported] = [s for s in result["steps"] if (s["round"], s["id"]) == where]
        if dead_in_intent or dead_in_result:
            assert reported["error"]["kind"] == "tool_outcome_unknown"
        else:
            assert reported["output"] == "once done"
    # A call with a key is repeated with the same key, only if its result was not saved.
    again = at == 6 and not after
    assert made.calls.count(f"{job_id}:agent.2.0") == (2 if again else 1)
    # Saved answers are not requested again.
    heard = 3 + (1 if at in (1, 5) and not after else 0)
    assert len(made.model.requests) == heard
    assert result["rounds"] == 3


async def test_messages_after_a_crash_equal_those_before_it(make_worker: MakeWorker) -> None:
    made = agent()
    Dying(made, 6, after=True)  # the keyed call of the second round is done
    worker = make_worker(registry=made.registry)
    job_id, result = await run_twice(worker)
    reported = await events(worker, job_id, "tool_call", "tool_result")
    pairs = [(1, "c0", 1), (1, "c1", 1), (2, "c0", 1), (2, "c1", 2)]
    assert [(data["round"], data["id"], data["attempt"]) for data in reported] == [
        pair for pair in pairs for _ in range(2)
    ]
    last = made.model.requests[-1].messages
    assert [message["role"] for message in last] == [
        *("user", "assistant", "tool", "tool", "assistant", "tool", "tool")
    ]
    deltas = await events(worker, job_id, "message")
    assert [(data["delta"], data["attempt"], data.get("round", 1)) for data in deltas] == [
        ("First.", 1, 1),
        ("Second.", 1, 2),
        ("All done.", 2, 3),
    ]
    assert result["usage"]["total_tokens"] == 15 + 15 + 9


async def test_only_the_failed_round_is_requested_again(make_worker: MakeWorker) -> None:
    made = agent()
    made.model.lines.insert(1, TransientError("busy"))
    worker = make_worker(registry=made.registry)
    job_id = await worker.run_job()
    assert len(made.calls) == 3
    assert len(made.model.requests) == 4
    assert (await worker.result(job_id))["text"] == "All done."


@pytest.mark.parametrize(
    ("arguments", "limits", "dies_at", "reason", "made_calls"),
    [
        # After agent.1, intent, result, agent.2 and the repeated call.
        ([{}] * 3, None, 5, "tool_loop", 1),
        # After one call.
        ([{"n": n} for n in range(6)], AgentLimits(rounds=4, calls=2), 3, "max_calls", 2),
    ],
    ids=["loops", "calls"],
)
async def test_loops_and_limits_count_over_all_attempts(
    make_worker: MakeWorker, arguments: Any, limits: Any, dies_at: int, reason: str, made_calls: int
) -> None:
    lines = [calls(("once", each)) for each in arguments]
    made = AgentHarness(*lines, names=["once"], limits=limits)
    made.add("once")
    Dying(made, dies_at, after=True)
    _, result = await run_twice(make_worker(registry=made.registry))
    assert result["finish_reason"] == reason
    assert len(made.calls) == made_calls


async def test_time_is_counted_over_all_attempts(make_worker: MakeWorker) -> None:
    made = agent()
    made.limits = AgentLimits(seconds=100.0)
    Dying(made, 4, after=True, at_ms=101_000)  # both calls of the first round are done
    _, result = await run_twice(make_worker(registry=made.registry))
    assert result["finish_reason"] == "max_time"
    assert len(result["steps"]) == 2
    assert len(made.model.requests) == 1


async def test_a_lost_attempt_saves_and_calls_nothing(make_worker: MakeWorker) -> None:
    made = agent()
    worker = make_worker(registry=made.registry)
    first = await worker.attempt()
    await worker.take_over(first.lease)
    assert await within(10, worker.executor.run(first)) is Outcome.LOST
    assert made.calls == []

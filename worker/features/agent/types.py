"""What an agent may do, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from common.contracts.jobs import DataField
from common.contracts.models import ToolField
from worker.execution.checkpoints import MAX_STEPS
from worker.execution.context import JobContext
from worker.features.model.types import ChatRequest, Completion, Sink, Usage
from worker.features.tools.call_log import CallRecord

if TYPE_CHECKING:
    from common.settings.models import ModelSettings

#: Steps of a job that are left to whoever runs the agent.
SPARE_STEPS = 16


class AgentModel(Protocol):
    """Whoever answers."""

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        """One streamed answer; one that was canceled is returned as far as it got."""


class RoundSink(Sink, Protocol):
    """Where the answers of several rounds go."""

    async def next_round(self) -> None:
        """The model is asked again: what follows belongs to another answer."""


@dataclass(frozen=True)
class AgentLimits:
    """How much one job may do; AGENT_MAX_ROUNDS, AGENT_MAX_CALLS and AGENT_MAX_S."""

    rounds: int = 8
    calls: int = 16
    seconds: float = 300.0

    @classmethod
    def of(cls, settings: ModelSettings) -> AgentLimits:
        """As the operator says. Each round and each call is a saved step, of which a job has so
        many: no number of calls beyond that can be had."""
        rounds = settings.agent_max_rounds
        most_calls = MAX_STEPS - SPARE_STEPS - rounds
        return cls(rounds, min(settings.agent_max_calls, most_calls), settings.agent_max_s)


@dataclass(frozen=True)
class AgentStep:
    """One call that the model asked for, and what came of it."""

    round: int
    id: str
    name: str
    #: A JSON object; text where the model wrote something else.
    arguments: Any
    record: CallRecord

    def event_fields(self, attempt: int) -> dict[str, Any]:
        """What both events of the step say."""
        return {
            ToolField.ID: self.id,
            ToolField.NAME: self.name,
            ToolField.ROUND: self.round,
            ToolField.ATTEMPT: attempt,
        }

    def outcome(self) -> dict[str, Any]:
        record = self.record
        view: dict[str, Any] = {}
        if record.error is not None:
            kind, message = record.error
            view[ToolField.ERROR] = {
                DataField.KIND: kind,
                DataField.MESSAGE: message,
            }
        else:
            view[ToolField.OUTPUT] = record.output
        view[ToolField.MS] = record.ms
        if record.truncated:
            view[ToolField.TRUNCATED] = True
        return view

    def view(self) -> dict[str, Any]:
        return {
            ToolField.ROUND: self.round,
            ToolField.ID: self.id,
            ToolField.NAME: self.name,
            ToolField.ARGUMENTS: self.arguments,
            **self.outcome(),
        }


@dataclass(frozen=True)
class AgentResult:
    """What an agent has come to."""

    #: The last answer, with the cost of all of them, and why there was no other.
    completion: Completion
    steps: Sequence[AgentStep]
    #: How often the model was asked, by any attempt.
    rounds: int

    @property
    def usage(self) -> Usage:
        return self.completion.usage

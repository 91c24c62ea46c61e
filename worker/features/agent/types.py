"""Limits, steps and results of an agent run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sluice.common.contracts.jobs import DataField
from sluice.common.contracts.models import ToolField
from sluice.worker.execution.checkpoints import MAX_STEPS
from sluice.worker.execution.context import JobContext
from sluice.worker.features.model.types import ChatRequest, Completion, Sink, Usage
from sluice.worker.features.tools.call_log import CallRecord

if TYPE_CHECKING:
    from sluice.common.settings.models import ModelSettings

#: Saved steps reserved for the handler that runs the agent.
SPARE_STEPS = 16


class AgentModel(Protocol):
    """The model as the agent uses it."""

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        """Stream one answer. A canceled request returns the part received so far."""


class RoundSink(Sink, Protocol):
    """Sink for the answers of several rounds."""

    async def next_round(self) -> None:
        """Called before the model is asked again; the following text belongs to a new answer."""


@dataclass(frozen=True)
class AgentLimits:
    """Limits of one job: AGENT_MAX_ROUNDS, AGENT_MAX_CALLS and AGENT_MAX_S."""

    rounds: int = 8
    calls: int = 16
    seconds: float = 300.0

    @classmethod
    def of(cls, settings: ModelSettings) -> AgentLimits:
        """Limits from the settings.

        Each round and each call is a saved step, so calls are also bounded by MAX_STEPS.
        """
        rounds = settings.agent_max_rounds
        most_calls = MAX_STEPS - SPARE_STEPS - rounds
        return cls(rounds, min(settings.agent_max_calls, most_calls), settings.agent_max_s)


@dataclass(frozen=True)
class AgentStep:
    """One tool call and its result."""

    round: int
    id: str
    name: str
    #: A JSON object; a string if the model did not write valid JSON.
    arguments: Any
    record: CallRecord

    def event_fields(self, attempt: int) -> dict[str, Any]:
        """Fields common to both events of the step."""
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
    """Result of an agent run."""

    #: The last answer, with the token usage of all rounds and the finish reason of the run.
    completion: Completion
    steps: Sequence[AgentStep]
    #: Model answers, over all attempts.
    rounds: int

    @property
    def usage(self) -> Usage:
        return self.completion.usage

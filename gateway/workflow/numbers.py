"""How many workflow jobs run, wait for a person, or have something to tell: four small commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from common.contracts.workflow import WorkflowKeys

#: How many replies they bring.
REPLIES: Final = 4


@dataclass(frozen=True, slots=True)
class WorkflowNumbers:
    """None for what Redis did not tell."""

    running: int | None = None
    waiting_input: int | None = None
    #: Webhooks of jobs that were not told everything yet, and deliveries that were given up.
    webhooks_waiting: int | None = None
    webhooks_dead: int | None = None


def ask(pipe: Any, keys: WorkflowKeys) -> None:
    """Add what has to be asked to a pipeline."""
    pipe.hlen(keys.running)
    pipe.zcard(keys.reviews)
    pipe.zcard(keys.deliveries)
    pipe.xlen(keys.dead_deliveries)


def answer(replies: Sequence[Any]) -> WorkflowNumbers:
    """From the replies to `ask`."""
    return WorkflowNumbers(*(reply if isinstance(reply, int) else None for reply in replies))

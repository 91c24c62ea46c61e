"""How far a job is, for those who watch it."""

from __future__ import annotations

from common.contracts.models import Channel, ModelStep, ProgressField
from worker.context import JobContext


async def tell_progress(context: JobContext, step: ModelStep, done: int, total: int) -> None:
    """So much is done, of so much."""
    data = {
        ProgressField.DONE.value: done,
        ProgressField.TOTAL.value: total,
        ProgressField.ATTEMPT.value: context.attempt,
    }
    await context.emit(Channel.PROGRESS.value, data, step=step.value)

"""What `/v1/status` says of limited tasks: who has the places, and who waits for one."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel, Field

from common.contracts.workers import WAITING_LABELS
from gateway.metrics_redis import RedisFacts
from gateway.status_check import Check, warning

#: From here on somebody should look.
OLD_S = 60.0

MaySee = Callable[[str], bool]


class HolderView(BaseModel):
    """A job that has a place."""

    job_id: str
    until_ms: int = Field(description="When its place is free unless that is renewed.")


class LimitCheck(Check):
    """Places that tasks share across all workers."""

    name: str = Field(examples=["chat+plan+code"])
    places: int
    running: int | None = None
    holders: list[HolderView] = Field(
        description="The jobs that have one, as far as the caller may see them."
    )


class WaitingCheck(Check):
    """A task whose jobs wait for a place, or may not begin at some worker just now."""

    task: str
    number: int = Field(0, description="Jobs that were read and wait.")
    oldest_age_s: float | None = None
    closed: dict[str, str] = Field(description="Workers that begin none just now, and why.")


def limits(facts: RedisFacts | None, may_see: MaySee) -> list[LimitCheck]:
    """Every limit across workers. That all places are taken is nothing to look at."""
    return [
        LimitCheck(
            name=limit.name,
            places=limit.places,
            running=limit.running,
            holders=[
                HolderView(job_id=holder.job_id, until_ms=holder.until_ms)
                for holder in limit.holders
                if may_see(holder.job_id)
            ],
        )
        for limit in ([] if facts is None else facts.limits)
    ]


def waiting(facts: RedisFacts | None) -> list[WaitingCheck]:
    """Every task of which somebody waits, or that is closed somewhere."""
    return (
        [] if facts is None else list(filter(None, (_task(facts, task) for task in WAITING_LABELS)))
    )


def _task(facts: RedisFacts, task: str) -> WaitingCheck | None:
    closed = {
        beat.consumer: beat.limits.closed[task]
        for beat in facts.workers
        if task in beat.limits.closed
    }
    found = facts.waiting.get(task)
    if not closed and found is None:
        return None
    age_s = None if found is None else facts.age_s(found.oldest_ms)
    words = []
    if found is not None and age_s is not None and age_s >= OLD_S:
        why = "".join(f"; {worker}: {reason}" for worker, reason in closed.items())
        words.append(f"{found.number} {task} jobs wait for a place, one for {age_s:.0f} s{why}")
    return WaitingCheck(
        task=task,
        number=0 if found is None else found.number,
        oldest_age_s=None if age_s is None else round(age_s, 3),
        closed=closed,
        **warning(words),
    )

"""What `/v1/status` says of Redis: of the server, or of each that partitions lie on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from common.contracts.workers import WAITING_LABELS
from common.text import plural
from gateway.observability.snapshot.redis import RedisFacts, memory_ratio


class Level(str, Enum):
    """How a part is, as draft-inadarei-api-health-check names it."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


class Check(BaseModel):
    """One part, how it is, and what to look at if it is not well."""

    model_config = ConfigDict(populate_by_name=True)

    status: Level = Level.PASS
    output: str | None = Field(None, description="What is wrong; only where something is.")


def warning_fields(words: Sequence[str]) -> dict[str, Any]:
    """The members of a part that somebody should look at, if there are any words for it."""
    return {"status": Level.WARN, "output": "; ".join(words)} if words else {}


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


def limit_checks(facts: RedisFacts | None, may_see: MaySee) -> list[LimitCheck]:
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


def waiting_checks(facts: RedisFacts | None) -> list[WaitingCheck]:
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
        waiting = plural(found.number, f"{task} job waits", f"{task} jobs wait")
        words.append(f"{waiting} for a place, one for {age_s:.0f} s{why}")
    return WaitingCheck(
        task=task,
        number=0 if found is None else found.number,
        oldest_age_s=None if age_s is None else round(age_s, 3),
        closed=closed,
        **warning_fields(words),
    )


#: From here on somebody should look.
MEMORY_HIGH: Final = 0.8
_OK: Final = "ok"
#: Partitions that a warning names.
MOST_NAMED: Final = 8


class RedisCheck(Check):
    """The server, or one of them."""

    rtt_ms: float | None = None
    redis_version: str | None = None
    memory_ratio: float | None = Field(None, description="Memory in use, of what there may be.")
    persistence: str | None = Field(None, description="How it survives a restart.")
    partitions: list[int] | None = Field(
        None, description="Those that it has; only where there are several (QUEUE_PARTITIONS)."
    )


def redis_checks(facts: RedisFacts | None) -> list[RedisCheck]:
    """The home partition's server first, then the others, then those that do not answer.

    Without the home a gateway cannot serve; of another partition that is away, the jobs wait.
    """
    if facts is None:
        return [RedisCheck(status=Level.FAIL, output="Redis does not answer")]
    if len(facts.partitions) < 2:
        return [_server(facts.info, rtt_ms=round(facts.rtt_s * 1000, 3))]
    infos = {0: facts.info} | {each.number: each.info for each in facts.partitions if each.info}
    there: dict[object, list[int]] = {}
    away: dict[str, list[int]] = {}
    for each in facts.partitions:
        if each.trouble:
            away.setdefault(each.trouble, []).append(each.number)
        else:  # several clients may lead to one server
            name = infos.get(each.server, {}).get("run_id", each.server)
            there.setdefault(name, []).append(each.number)
    found = []
    for numbers in there.values():
        info = next((infos[number] for number in numbers if number in infos), {})
        rtt_ms = round(facts.rtt_s * 1000, 3) if numbers[0] == 0 else None
        found.append(_server(info, rtt_ms=rtt_ms, partitions=numbers))
    for trouble, numbers in away.items():
        verb = "does" if len(numbers) == 1 else "do"
        words = [
            f"{partition_names(numbers)} {verb} not answer: {trouble.rstrip('.')}; "
            "what is there waits"
        ]
        found.append(RedisCheck(partitions=numbers, **warning_fields(words)))
    return found


def full_partitions(facts: RedisFacts, limit: float) -> list[str]:
    """Partitions that have little room left, while there may be some elsewhere."""
    if len(facts.partitions) < 2:
        return []
    full = [each.number for each in facts.partitions if (each.backlog or 0) >= limit]
    if not full or len(full) == len(facts.partitions):
        return []
    return [f"{partition_names(full)} {'is' if len(full) == 1 else 'are'} nearly full"]


def partition_names(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"partition {numbers[0]}"
    more = f" and {len(numbers) - MOST_NAMED} more" if len(numbers) > MOST_NAMED else ""
    return f"partitions {', '.join(map(str, numbers[:MOST_NAMED]))}{more}"


def _server(info: Mapping[str, Any], **known: Any) -> RedisCheck:
    words = []
    ratio = memory_ratio(info)
    if ratio is not None and ratio >= MEMORY_HIGH:
        words.append(f"{ratio:.0%} of its memory is in use; at 100 % it takes no more jobs")
    persistence, fault = _persistence(info)
    if fault:
        words.append(fault)
    version = info.get("redis_version")
    return RedisCheck(
        redis_version=None if version is None else str(version),
        memory_ratio=None if ratio is None else round(ratio, 4),
        persistence=persistence,
        **known,
        **warning_fields(words),
    )


def _persistence(info: Mapping[str, Any]) -> tuple[str | None, str]:
    """How it persists, and what is wrong with that."""
    if "aof_enabled" not in info:
        return None, ""
    if not info["aof_enabled"]:
        return "snapshots only", "no append-only file: jobs since the last snapshot would be lost"
    if info.get("aof_last_write_status", _OK) != _OK:
        return "append-only file", "the append-only file cannot be written; is the disk full?"
    return "append-only file", ""

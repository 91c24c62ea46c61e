"""Checks of `/v1/status` on Redis servers, shared limits and waiting tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from sluice.common.contracts.workers import WAITING_LABELS
from sluice.common.text import plural
from sluice.gateway.observability.snapshot.redis import RedisFacts, memory_ratio


class Level(str, Enum):
    """Status of a check, as named by draft-inadarei-api-health-check."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


class Check(BaseModel):
    """Result of one check."""

    model_config = ConfigDict(populate_by_name=True)

    status: Level = Level.PASS
    output: str | None = Field(None, description="Problem found; absent if there is none.")


def warning_fields(warnings: Sequence[str]) -> dict[str, Any]:
    """Members that turn a check into a warning; empty without warnings."""
    return {"status": Level.WARN, "output": "; ".join(warnings)} if warnings else {}


#: Waiting time in seconds from which a check warns.
OLD_S = 60.0

MaySee = Callable[[str], bool]


class HolderView(BaseModel):
    """A job that holds a slot."""

    job_id: str
    until_ms: int = Field(
        description="Unix milliseconds at which the slot is released unless it is renewed."
    )


class LimitCheck(Check):
    """A concurrency limit that tasks share across all workers."""

    name: str = Field(examples=["chat+plan+code"])
    places: int = Field(description="Number of slots.")
    running: int | None = None
    holders: list[HolderView] = Field(
        description="Jobs that hold a slot, limited to those the caller may see."
    )


class WaitingCheck(Check):
    """A task whose jobs wait for a slot, or that some worker does not start at the moment."""

    task: str
    number: int = Field(0, description="Jobs delivered to a worker that wait for a slot.")
    oldest_age_s: float | None = None
    closed: dict[str, str] = Field(
        description="Reason by worker, for workers that do not start this task at the moment."
    )


def limit_checks(facts: RedisFacts | None, may_see: MaySee) -> list[LimitCheck]:
    """One check per shared limit. A fully used limit is not a warning."""
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
    """One check per task with waiting jobs, or that some worker does not start."""
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
    warnings = []
    if found is not None and age_s is not None and age_s >= OLD_S:
        why = "".join(f"; {worker}: {reason}" for worker, reason in closed.items())
        waiting = plural(found.number, f"{task} job waits", f"{task} jobs wait")
        warnings.append(f"{waiting} for a slot, the oldest for {age_s:.0f} s{why}")
    return WaitingCheck(
        task=task,
        number=0 if found is None else found.number,
        oldest_age_s=None if age_s is None else round(age_s, 3),
        closed=closed,
        **warning_fields(warnings),
    )


#: Share of memory in use from which the Redis check warns.
MEMORY_HIGH: Final = 0.8
_OK: Final = "ok"
#: Maximum number of partitions that a warning lists.
MOST_NAMED: Final = 8


class RedisCheck(Check):
    """One Redis server."""

    rtt_ms: float | None = None
    redis_version: str | None = None
    memory_ratio: float | None = Field(
        None, description="Used memory, as a share of maxmemory or of the machine's memory."
    )
    persistence: str | None = Field(
        None, description="Kind of persistence: `append-only file` or `snapshots only`."
    )
    partitions: list[int] | None = Field(
        None, description="Partitions on this server; only with several (QUEUE_PARTITIONS)."
    )


def redis_checks(facts: RedisFacts | None) -> list[RedisCheck]:
    """The server of the home partition first, then the others, then unreachable partitions.

    Without the home partition a gateway cannot serve. Jobs of any other unreachable partition wait.
    """
    if facts is None:
        return [RedisCheck(status=Level.FAIL, output="Redis does not answer")]
    if len(facts.partitions) < 2:
        return [_server(facts.info, rtt_ms=round(facts.rtt_s * 1000, 3))]
    infos = {0: facts.info} | {each.number: each.info for each in facts.partitions if each.info}
    reachable: dict[object, list[int]] = {}
    unreachable: dict[str, list[int]] = {}
    for each in facts.partitions:
        if each.trouble:
            unreachable.setdefault(each.trouble, []).append(each.number)
        else:  # several clients may connect to one server
            name = infos.get(each.server, {}).get("run_id", each.server)
            reachable.setdefault(name, []).append(each.number)
    found = []
    for numbers in reachable.values():
        info = next((infos[number] for number in numbers if number in infos), {})
        rtt_ms = round(facts.rtt_s * 1000, 3) if numbers[0] == 0 else None
        found.append(_server(info, rtt_ms=rtt_ms, partitions=numbers))
    for trouble, numbers in unreachable.items():
        verb = "does" if len(numbers) == 1 else "do"
        warnings = [
            f"{partition_names(numbers)} {verb} not answer: {trouble.rstrip('.')}; "
            "jobs stored there wait"
        ]
        found.append(RedisCheck(partitions=numbers, **warning_fields(warnings)))
    return found


def full_partitions(facts: RedisFacts, limit: float) -> list[str]:
    """A warning about partitions that are nearly full while others are not."""
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
    warnings = []
    ratio = memory_ratio(info)
    if ratio is not None and ratio >= MEMORY_HIGH:
        warnings.append(f"{ratio:.0%} of its memory is in use; at 100 % it refuses new jobs")
    persistence, fault = _persistence(info)
    if fault:
        warnings.append(fault)
    version = info.get("redis_version")
    return RedisCheck(
        redis_version=None if version is None else str(version),
        memory_ratio=None if ratio is None else round(ratio, 4),
        persistence=persistence,
        **known,
        **warning_fields(warnings),
    )


def _persistence(info: Mapping[str, Any]) -> tuple[str | None, str]:
    """Kind of persistence, and a warning or ''."""
    if "aof_enabled" not in info:
        return None, ""
    if not info["aof_enabled"]:
        return "snapshots only", "no append-only file: jobs since the last snapshot would be lost"
    if info.get("aof_last_write_status", _OK) != _OK:
        return "append-only file", "the append-only file cannot be written; is the disk full?"
    return "append-only file", ""

"""What `/v1/status` says of Redis: of the server, or of each that partitions lie on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from gateway.metrics_redis import RedisFacts, memory_ratio
from gateway.status_check import Check, Level, warning

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


def servers(facts: RedisFacts | None) -> list[RedisCheck]:
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
        words = [f"{named(numbers)} {verb} not answer: {trouble.rstrip('.')}; what is there waits"]
        found.append(RedisCheck(partitions=numbers, **warning(words)))
    return found


def full_partitions(facts: RedisFacts, limit: float) -> list[str]:
    """Partitions that have little room left, while there may be some elsewhere."""
    if len(facts.partitions) < 2:
        return []
    full = [each.number for each in facts.partitions if (each.backlog or 0) >= limit]
    if not full or len(full) == len(facts.partitions):
        return []
    return [f"{named(full)} {'is' if len(full) == 1 else 'are'} nearly full"]


def named(numbers: Sequence[int]) -> str:
    """Partitions, in few words."""
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
        **warning(words),
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

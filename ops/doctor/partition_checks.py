"""Partitions: does the server of each answer, and can it be trusted with jobs as the first one?"""

from __future__ import annotations

from collections.abc import Sequence

from ops.doctor.box import Box
from ops.doctor.finding import Finding, Unable, check, fail, ok, warn
from ops.doctor.lines import DoctorLine, by_server
from ops.doctor.text import plural

#: Servers and partitions that one line names.
MOST_NAMED = 8


@check(
    "redis.partitions",
    "where `QUEUE_PARTITIONS` is more than 1, the server of every partition answers, takes writes "
    "and keeps what it took",
    "start the server that is named; `redis-cli --cluster check` tells which slots have none",
    limit_s=30.0,
)
def partitions(box: Box) -> list[Finding]:
    """All of them, by the servers that they lie on; the other checks look at the first one's."""
    lines = box.lines
    if len(lines) == 1:
        raise Unable("there is one partition")
    servers = by_server(lines)
    names = [f"{_numbers(each)} at {place}" for place, each in list(servers.items())[:MOST_NAMED]]
    more = f" and {len(servers) - MOST_NAMED} more" if len(servers) > MOST_NAMED else ""
    seen = f"{plural(len(lines), 'partition')} on {plural(len(servers), 'server')}"
    found = [finding for place, each in servers.items() for finding in _server(box, place, each)]
    return found or [ok(f"{seen}: {'; '.join(names)}{more}")]


def _server(box: Box, place: str, lines: Sequence[DoctorLine]) -> list[Finding]:
    """What is wrong with a server, beside what is said of the home's anyway."""
    server = lines[0].server
    where = f"{_numbers(lines)} at {place}"
    if not server.answers:
        return [
            fail(
                f"{where}: no answer",
                f"{server.trouble}; what is in there waits",
                box.remedies.start_redis(server.target),
            )
        ]
    if lines[0].number == 0:
        return []
    found = []
    role = str(server.info.get("role", "master"))
    if role != "master":
        found.append(
            fail(
                f"{where}: a {role}",
                "a replica takes no writes",
                "`redis-cli --cluster check` tells who the master is",
            )
        )
    if not server.number("aof_enabled"):
        found.append(
            warn(
                f"{where}: no append-only file",
                "a crash of this server loses the jobs since its last snapshot",
                server.change("appendonly", "yes"),
            )
        )
    policy = str(server.info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        found.append(
            warn(
                f"{where}: {policy}",
                "when its memory is used up, this server forgets jobs",
                server.change("maxmemory-policy", "noeviction"),
            )
        )
    return found


def _numbers(lines: Sequence[DoctorLine]) -> str:
    numbers = [str(line.number) for line in lines]
    more = f" and {len(numbers) - MOST_NAMED} more" if len(numbers) > MOST_NAMED else ""
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:MOST_NAMED])}{more}"


CHECKS = (partitions,)

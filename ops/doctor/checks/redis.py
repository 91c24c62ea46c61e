"""Checks of Redis: partitions, version, role, memory, latency, clients and clock."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from redis import exceptions

from sluice.common.redis.tls import tls_problem
from sluice.common.text import plural
from sluice.common.version import OLDEST_REDIS, reported_version
from sluice.ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from sluice.ops.doctor.machine import Machine
from sluice.ops.doctor.redis_server import PartitionServer, RedisServer, by_server
from sluice.ops.terminal import format_bytes

#: Maximum number of servers or partitions listed in one line.
MAX_NAMED = 8


@check(
    "redis.partitions",
    "with `QUEUE_PARTITIONS` above 1, the server of every partition answers, accepts writes and "
    "persists them",
    "start the server in question; `redis-cli --cluster check` shows slots without a server",
    timeout_s=30.0,
)
def partitions(machine: Machine) -> list[Finding]:
    """Checks the servers of all partitions. Other checks use the server of partition 0."""
    found = machine.partitions
    if len(found) == 1:
        raise CheckSkipped("the queue has one partition")
    servers = by_server(found)
    names = [
        f"{_numbers(each)} at {address}" for address, each in list(servers.items())[:MAX_NAMED]
    ]
    more = f" and {len(servers) - MAX_NAMED} more" if len(servers) > MAX_NAMED else ""
    seen = f"{plural(len(found), 'partition')} on {plural(len(servers), 'server')}"
    problems = [
        problem
        for address, each in servers.items()
        for problem in _server_problems(machine, address, each)
    ]
    return problems or [ok(f"{seen}: {'; '.join(names)}{more}")]


def _server_problems(
    machine: Machine, address: str, partitions: Sequence[PartitionServer]
) -> list[Finding]:
    """Problems of one server. That of partition 0 has separate checks."""
    server = partitions[0].server
    where = f"{_numbers(partitions)} at {address}"
    if not server.answers:
        return [
            fail(
                f"{where}: no answer",
                f"{server.error}; its jobs wait",
                machine.remedies.start_redis(server.target),
            )
        ]
    if partitions[0].number == 0:
        return []
    found = []
    role = str(server.info.get("role", "master"))
    if role != "master":
        found.append(
            fail(
                f"{where}: a {role}",
                "a replica accepts no writes",
                "`redis-cli --cluster check` shows the master",
            )
        )
    if not server.number("aof_enabled"):
        found.append(
            warn(
                f"{where}: no append-only file",
                "a crash of this server loses the jobs since its last snapshot",
                server.how_to_set("appendonly", "yes"),
            )
        )
    policy = str(server.info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        found.append(
            warn(
                f"{where}: {policy}",
                "when its memory is full, this server evicts jobs",
                server.how_to_set("maxmemory-policy", "noeviction"),
            )
        )
    return found


def _numbers(partitions: Sequence[PartitionServer]) -> str:
    numbers = [str(partition.number) for partition in partitions]
    more = f" and {len(numbers) - MAX_NAMED} more" if len(numbers) > MAX_NAMED else ""
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:MAX_NAMED])}{more}"


PARTITION_CHECKS = (partitions,)


#: Number of timed round trips; limits in milliseconds for the median and the maximum.
PINGS = 25
SLOW_MS, VERY_SLOW_MS = 10.0, 250.0
#: Used shares of maxmemory and maxclients for a warning, and for a failure.
TIGHT, VERY_TIGHT = 0.75, 0.9
#: Maximum share of the machine's memory for maxmemory.
MAX_MEMORY_SHARE = 0.8
#: Difference of the clocks in seconds for a warning, and for a failure.
CLOCK_DIFFERS_S, CLOCK_WRONG_S = 1.0, 30.0
#: Maximum memory of the event stream of a finished job.
STREAM_NODE_BYTES = 1024
_NO_EVICTION = "noeviction"
_MASTER = "master"


@check(
    "redis.reachable",
    "Redis is configured (`--redis`, `REDIS_URL`, a credential, the installer's, a private one) "
    "and answers",
    "`sudo systemctl start redis`, or `sluice up`; or set the right URL with `--redis`",
)
def reachable(machine: Machine) -> Finding:
    server = machine.redis
    if server is None and machine.remedies.installed:
        return warn(
            "no Redis is configured for this user",
            "the administrator's URL is readable by root only",
            "sudo sluice doctor",
        )
    if server is None:
        return fail(
            "no Redis is configured and no private one is running",
            "neither --redis nor REDIS_URL is set, and `sluice up` is not running here",
            "sluice up",
        )
    where = f"{server.target.masked_url} ({server.target.source})"
    if server.answers:
        return ok(f"{where} answers in {server.ping_ms:.1f} ms")
    cause, fix = _connection_problem(machine, server, server.error or Exception())
    return fail(f"{where} does not answer", cause, fix)


def _connection_problem(machine: Machine, server: RedisServer, error: Exception) -> tuple[str, str]:
    """The cause of a failed connection, and its fix."""
    text = str(error)
    target, remedies = server.target, machine.remedies
    if isinstance(error, exceptions.BusyLoadingError):
        return "it is still loading its append-only file", "wait, and run the doctor again"
    if isinstance(error, exceptions.AuthenticationError) or "NOAUTH" in text:
        return f"user name or password rejected ({text})", f"{target.cli} PING"
    if "Permission denied" in text:
        return "this user may not connect to the socket", "sudo sluice doctor"
    problem = tls_problem(target.url, error)
    if problem is not None:
        return problem.cause, problem.fix
    if isinstance(error, exceptions.TimeoutError):
        return (
            f"it accepts connections but does not reply ({text})",
            f"{target.cli} --latency; {remedies.redis_log(target)}",
        )
    if isinstance(error, ValueError) and text.startswith("has "):
        return f"the URL {text}", "correct the options after the ? of the URL"
    if isinstance(error, ValueError):
        return f"not a Redis URL ({text})", "use redis://, rediss:// or unix:///path"
    return text or type(error).__name__, remedies.start_redis(target)


@check(
    "redis.version",
    "Redis is version 6.2 or newer, or the server is Valkey",
    "Ubuntu 22.04 ships 6.0.16; use the one bundled with Sluice (unset `REDIS_URL`), or a "
    "redis-server from Redis' package repository",
)
def version(machine: Machine) -> Finding:
    found = machine.server.version
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if len(numbers) < len(OLDEST_REDIS):
        return note(f"version {found or 'not reported'}", "unknown version of Redis")
    if numbers >= OLDEST_REDIS:
        return ok(" ".join(reported_version(machine.server.info)))
    oldest = ".".join(map(str, OLDEST_REDIS))
    return fail(
        f"Redis is {found}",
        f"{oldest} is the first with XAUTOCLAIM, which recovers the jobs of dead workers",
        "unset REDIS_URL to use the bundled Redis; or `sudo deploy/install.sh install --dry-run`, "
        "which prints how to install a newer one here",
    )


@check(
    "redis.role",
    "the server is a master and accepts writes",
    "set `REDIS_URL` to the master, or `redis-cli REPLICAOF NO ONE`",
)
def role(machine: Machine) -> Finding:
    server = machine.server
    found = str(server.info.get("role", _MASTER))
    if found == _MASTER:
        replicas = server.number("connected_slaves")
        return ok(f"master with {plural(replicas, 'replica')}" if replicas else "master")
    master = f"{server.info.get('master_host')}:{server.info.get('master_port')}"
    return fail(
        f"a {found} of {master}",
        "a replica accepts no writes, so no job can be submitted",
        f"set REDIS_URL to the master, {master}; or `{server.target.cli} REPLICAOF NO ONE`",
    )


@check(
    "redis.eviction",
    "`maxmemory-policy` is `noeviction`",
    "`redis-cli CONFIG SET maxmemory-policy noeviction`, and the same line in redis.conf",
)
def eviction(machine: Machine) -> Finding:
    """When memory is full, Redis must refuse writes rather than evict jobs."""
    server = machine.server
    policy = server.setting("maxmemory-policy")
    if policy == _NO_EVICTION:
        return ok(f"maxmemory-policy {policy}")
    change = server.how_to_set("maxmemory-policy", _NO_EVICTION)
    if server.setting("maxmemory") in ("", "0"):
        cause = "harmless while maxmemory is 0; with a limit, Redis would evict jobs"
        return warn(f"maxmemory-policy {policy}", cause, change)
    cause = "Redis evicts jobs when its memory is full"
    return fail(f"maxmemory-policy {policy}", cause, change)


@check(
    "redis.evicted",
    "no key was evicted",
    "set `maxmemory-policy noeviction`, then `sluice audit --local` lists the affected jobs",
)
def evicted(machine: Machine) -> Finding:
    count = machine.server.number("evicted_keys")
    if not count:
        return ok("no key was evicted")
    change = machine.server.how_to_set("maxmemory-policy", _NO_EVICTION)
    was = "was" if count == 1 else "were"
    return fail(
        f"{plural(count, 'key')} {was} evicted since Redis started",
        "memory was full and the eviction policy allowed it; jobs may be lost",
        f"{change}; then `sluice audit --local`",
    )


@check(
    "redis.memory",
    "`maxmemory` is set, fits the machine, and is not almost used up",
    "`redis-cli CONFIG SET maxmemory 1gb`, shorter TTLs, or more memory",
)
def memory(machine: Machine) -> Finding:
    """When memory is full, every new job gets a 503."""
    server = machine.server
    limit = int(server.setting("maxmemory") or 0)
    used = server.number("used_memory")
    total = server.number("total_system_memory")
    if not limit:
        suggested = f"{max(64, total // 4 >> 20)}mb"
        return note(
            f"{format_bytes(used)} used, no limit",
            "if Redis uses all memory, the kernel kills a process, possibly Redis",
            server.how_to_set("maxmemory", suggested),
        )
    share = used / limit
    seen = f"{format_bytes(used)} of {format_bytes(limit)} used ({share:.0%})"
    if share >= VERY_TIGHT:
        cause = "at 100 % every new job gets a 503"
        return fail(seen, cause, server.how_to_set("maxmemory", f"{limit * 2 >> 20}mb"))
    if share >= TIGHT:
        cause = "memory is getting full; finished jobs are kept for JOB_TTL_S"
        return warn(seen, cause, server.how_to_set("maxmemory", f"{limit * 2 >> 20}mb"))
    if total and limit > total * MAX_MEMORY_SHARE:
        return warn(
            f"{seen}; the machine has {format_bytes(total)}",
            "a rewrite of the append-only file may need as much again, which does not fit",
            server.how_to_set("maxmemory", f"{total // 2 >> 20}mb"),
        )
    return ok(seen)


@check(
    "redis.latency",
    f"round trips take well under {SLOW_MS:.0f} ms",
    "`redis-cli --latency`, `redis-cli SLOWLOG GET 10`; check for swapping and hugepages",
)
def latency(machine: Machine) -> Finding:
    """Each state change of a job is one round trip."""
    server = machine.server
    times = []
    for _ in range(PINGS):
        times.append(server.ping())
    median, worst = statistics.median(times), max(times)
    seen = f"median {median:.2f} ms, maximum {worst:.1f} ms of {PINGS} round trips"
    if median > SLOW_MS or worst > VERY_SLOW_MS:
        cause = "slow commands, swapping, a busy CPU or a slow network"
        return warn(seen, cause, f"{server.target.cli} SLOWLOG GET 10")
    return ok(seen)


@check(
    "redis.clients",
    "the number of connections is well below `maxclients`, and none was refused",
    "`redis-cli CLIENT LIST`, then `redis-cli CONFIG SET maxclients 10000`",
)
def clients(machine: Machine) -> Finding:
    """When Redis refuses a connection, a job is refused."""
    server = machine.server
    limit = server.number("maxclients") or int(server.setting("maxclients") or 0)
    connected, blocked = server.number("connected_clients"), server.number("blocked_clients")
    refused = server.number("rejected_connections")
    connections = plural(limit, "connection")
    seen = f"{connected} of {connections}, {blocked} of them blocked"
    if limit and connected >= limit * VERY_TIGHT:
        cause = "at the limit Redis refuses connections"
        return fail(seen, cause, server.how_to_set("maxclients", str(limit * 2)))
    if refused:
        was = "was" if refused == 1 else "were"
        cause = f"{plural(refused, 'connection')} {was} refused since Redis started"
        return warn(seen, cause, server.how_to_set("maxclients", str(max(10_000, limit * 2))))
    return ok(seen)


@check(
    "redis.streams",
    f"`stream-node-max-bytes` is {STREAM_NODE_BYTES} or less",
    f"`redis-cli CONFIG SET stream-node-max-bytes {STREAM_NODE_BYTES}`, and in redis.conf",
)
def streams(machine: Machine) -> Finding:
    """Redis allocates at least one node of this size per stream."""
    server = machine.server
    value = server.setting("stream-node-max-bytes")
    if not value.isdecimal() or 0 < int(value) <= STREAM_NODE_BYTES:
        return ok(f"stream-node-max-bytes {value or 'unknown'}")
    return note(
        f"stream-node-max-bytes {value}",
        "the events of each finished job take about this many bytes, however few they are",
        server.how_to_set("stream-node-max-bytes", str(STREAM_NODE_BYTES)),
    )


@check(
    "redis.clock",
    "the clocks of Redis and of this machine agree",
    "`timedatectl set-ntp true` on both machines",
)
def clock(machine: Machine) -> Finding:
    """Timestamps of jobs come from the clock of Redis."""
    try:
        before = machine.now()
        seconds, micros = machine.server.client.time()
        local_time = (before + machine.now()) / 2
    except exceptions.NoPermissionError:
        raise CheckSkipped("this Redis user may not run TIME") from None
    apart = abs(seconds + micros / 1e6 - local_time)
    seen = f"{apart * 1000:.0f} ms apart" if apart < CLOCK_DIFFERS_S else f"{apart:.1f} s apart"
    if apart < CLOCK_DIFFERS_S:
        return ok(seen)
    cause = "a clock is not synchronised; run_at and the age of jobs are off by as much"
    report = fail if apart > CLOCK_WRONG_S else warn
    return report(
        seen, cause, "sudo timedatectl set-ntp true, on this machine and on that of Redis"
    )


CHECKS = (
    reachable, version, role, eviction, evicted, memory, latency, clients, streams, clock,
)  # fmt: skip

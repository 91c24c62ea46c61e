"""Checks of the queue: its keys, consumers, waiting jobs, dead letters and integrity."""

from __future__ import annotations

from common import codec
from common.contracts.jobs import JobKeys
from common.contracts.queue import paused_key
from common.contracts.stats import RESOLUTIONS, StatsKeys
from common.jobs import partitioned_queue
from common.jobs.audit.report import AUDIT_FIELDS, AuditRecord
from common.jobs.queue import DeadLetter
from common.text import plural
from ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from ops.doctor.machine import Machine
from ops.text import format_duration, printable

#: A message whose lease was not renewed for this many leases has no worker.
STALE_LEASES = 3
#: Seconds that a message may wait for a worker, or a scheduled job may be late.
LONG_WAIT_S = 60.0
OVERDUE_S = 15.0
#: Share of BACKPRESSURE_MAX_BACKLOG.
NEARLY_FULL = 0.8
#: Times AUDIT_EVERY_S after which an audit is overdue.
AUDITS_MISSED = 3
RESUME = "`sluice queue resume`, when there is no reason any more"


@check(
    "queue.keys",
    "our keys hold what the contract says",
    "`redis-cli RENAME KEY KEY.foreign`, and find out who wrote it",
)
def key_types(machine: Machine) -> Finding:
    """Another program may use the same names."""
    keys, lanes = machine.keys, machine.worker_settings.lane_names
    wanted: dict[str, str] = {}
    found: dict[str, str] = {}
    for partition in machine.partitions:
        types = _partition_types(partition.keys) | (
            _global_types(keys) if partition.keys == keys else {}
        )
        types |= {partition.keys.for_lane(lane).stream: "stream" for lane in lanes}
        found |= {key: codec.decode_text(partition.client.type(key)) for key in types}
        wanted |= types
    wrong = [key for key, kind in found.items() if kind not in (wanted[key], "none")]
    if wrong:
        seen = ", ".join(f"{key} is a {found[key]}, not a {wanted[key]}" for key in wrong)
        cause = "somebody else uses the same name in this Redis"
        return fail(
            seen, cause, f"{machine.server.target.cli} RENAME {wrong[0]} {wrong[0]}.foreign"
        )
    if all(found[partition.keys.queue] == "none" for partition in machine.partitions):
        return note(f"{keys.queue} is not there yet", "no job was ever queued, and no worker ran")
    return ok(f"{keys.queue} and the others hold what they should")


def _partition_types(keys: JobKeys) -> dict[str, str]:
    """The keys of each partition, and their types."""
    return {
        keys.queue: "stream",
        keys.dead_letters: "stream",
        keys.scheduled: "zset",
        keys.counts: "hash",
        keys.index: "zset",
    }


def _global_types(keys: JobKeys) -> dict[str, str]:
    """The keys that exist once, and their types."""
    stats = StatsKeys(keys.queue)
    return {
        keys.workers: "zset",
        keys.audit: "hash",
        **{stats.ring(each): "stream" for each in RESOLUTIONS},
        stats.sampler_lock: "string",
        stats.seen: "string",
        stats.gateways: "hash",
        paused_key(keys.queue): "string",
    }


@check(
    "queue.group",
    "the consumer group that drains the queue is there",
    "start a worker: it makes the group",
)
def group(machine: Machine) -> Finding:
    name = machine.worker_settings.worker_group
    if machine.queue.has_group is None:
        raise CheckSkipped("this Redis user may not ask")
    if machine.queue.has_group:
        return ok(f"{name}, with {plural(len(machine.queue.consumers), 'consumer')}")
    if not machine.queue.reading.length:
        return note(
            f"there is no group {name} yet",
            "no worker has run on this Redis",
            machine.remedies.start_worker,
        )
    cause = "no worker has run with this WORKER_GROUP and QUEUE_STREAM_KEY"
    return fail(
        f"{plural(machine.queue.reading.length, 'job')} and no group {name}",
        cause,
        machine.remedies.start_worker,
    )


@check(
    "queue.workers",
    "at least one worker is alive, and none is stuck or holding back",
    "`sudo systemctl start redis-echo-worker`, or `python -m worker`",
)
def workers(machine: Machine) -> Finding:
    alive = machine.queue.workers
    if not alive:
        return _no_heartbeat(machine)
    names = [
        f"{beat.consumer} ({beat.in_flight} of {beat.max_inflight} busy"
        f"{', stopping' if beat.draining else ''})"
        for beat in alive[:8]
    ]
    more = f" and {len(alive) - 8} more" if len(alive) > 8 else ""
    seen = printable(f"{plural(len(alive), 'worker')}: {', '.join(names)}{more}")
    paused = [beat for beat in alive if beat.paused]
    if paused:
        return warn(seen, printable(paused[0].holding_why), RESUME)
    holding = [beat for beat in alive if beat.holding]
    if holding:
        return warn(
            seen,
            printable(f"{holding[0].consumer} takes nothing new: {holding[0].holding_why}"),
            "see host.memory and jetson.temperature; the limits are MIN_AVAILABLE_MB, "
            "MAX_MEMORY_PRESSURE and MAX_TEMPERATURE_C",
        )
    if all(beat.draining for beat in alive):
        return warn(seen, "all of them are stopping", machine.remedies.start_worker)
    return ok(seen)


def _no_heartbeat(machine: Machine) -> Finding:
    lately_ms = 3 * machine.worker_settings.block_ms + 10_000
    reading = [consumer for consumer in machine.queue.consumers if consumer.idle_ms < lately_ms]
    if reading:
        names = printable(", ".join(consumer.name for consumer in reading[:8]))
        return note(
            f"no worker tells of itself; {names} read lately", "they may be foreign, or just ended"
        )
    waiting = machine.queue.reading.waiting or 0
    return fail(
        f"no worker is alive, {plural(waiting, 'job')} waiting",
        "none runs",
        machine.remedies.start_worker,
    )


@check(
    "queue.consumers",
    "no consumer that fell silent still holds messages",
    "a living worker takes them over after a lease; start one",
)
def consumers(machine: Machine) -> Finding:
    """A consumer without a worker keeps its messages until another takes them over."""
    if machine.queue.has_group is None:
        raise CheckSkipped("this Redis user may not ask")
    limit_ms = STALE_LEASES * machine.worker_settings.lease_ms
    silent = [
        consumer
        for consumer in machine.queue.consumers
        if consumer.pending and consumer.idle_ms > limit_ms
    ]
    if not silent:
        return ok(
            f"{plural(len(machine.queue.consumers), 'consumer')}, none silent with work in hand"
        )
    names = ", ".join(
        f"{consumer.name} ({consumer.pending} in hand, silent for "
        f"{format_duration(consumer.idle_ms / 1000)})"
        for consumer in silent[:8]
    )
    alive = {beat.consumer for beat in machine.queue.workers}
    if any(consumer.name in alive for consumer in silent):
        cause = "it says that it lives, and does not read"
        return warn(printable(names), cause, machine.remedies.restart("redis-echo-worker"))
    cause = "their worker is gone and nobody took their messages over"
    return warn(printable(names), cause, machine.remedies.start_worker)


@check(
    "queue.pending",
    "every message in work was heard of within a few leases",
    "start a worker; where one runs, `journalctl -u redis-echo-worker` tells what it is doing",
)
def pending(machine: Machine) -> Finding:
    """A worker renews a lease after a third of it; an idle message has no worker."""
    reading = machine.queue.reading
    if reading.pending is None or reading.idle_ms is None:
        raise CheckSkipped("this Redis user may not ask")
    idle_s, lease_s = reading.idle_ms / 1000, machine.worker_settings.lease_ms / 1000
    if not reading.pending:
        return ok("nothing in work")
    seen = f"{reading.pending} in work, not heard of for at most {format_duration(idle_s)}"
    if idle_s <= STALE_LEASES * lease_s:
        return ok(seen)
    cause = f"the lease is {format_duration(lease_s)}, and nobody took the job over"
    if machine.queue.workers:
        return warn(seen, cause, machine.remedies.log_of("redis-echo-worker"))
    return fail(seen, cause, machine.remedies.start_worker)


@check(
    "queue.waiting",
    f"no job waits longer than {LONG_WAIT_S:.0f} s for a worker",
    "more workers (`systemctl enable --now redis-worker@2`), a larger `MAX_INFLIGHT`",
)
def waiting(machine: Machine) -> Finding:
    """By the age of the oldest one, which says more than their number."""
    reading = machine.queue.reading
    if reading.waiting is None or reading.oldest_ms is None:
        raise CheckSkipped("this Redis user may not read the queue")
    if not reading.oldest_ms:
        return ok("nobody waits")
    age_s = max(0.0, (machine.queue.now_ms - reading.oldest_ms) / 1000)
    seen = f"{reading.waiting} waiting, the oldest for {format_duration(age_s)}"
    if age_s < LONG_WAIT_S:
        return ok(seen)
    if not machine.queue.workers:
        return fail(seen, "no worker is alive", machine.remedies.start_worker)
    if any(beat.paused for beat in machine.queue.workers):
        return warn(seen, "the queue is paused", RESUME)
    busy = all(beat.in_flight >= beat.max_inflight for beat in machine.queue.workers)
    cause = "all workers are busy" if busy else "the workers take too little, or are stuck"
    fix = f"one more worker: {machine.remedies.one_more_worker}; or a larger MAX_INFLIGHT"
    return warn(seen, cause, fix)


@check(
    "queue.backlog",
    "waiting and running jobs are far from `BACKPRESSURE_MAX_BACKLOG`",
    "more workers, or a larger `BACKPRESSURE_MAX_BACKLOG`",
)
def backlog(machine: Machine) -> Finding:
    """At the limit every POST gets 429."""
    reading, limit = machine.queue.reading, machine.gateway_settings.backpressure_max_backlog
    if reading.waiting is None or reading.pending is None:
        raise CheckSkipped("this Redis user may not ask")
    count = reading.waiting + reading.pending
    seen = f"{count} of {limit}"
    fix = f"start more workers, or set BACKPRESSURE_MAX_BACKLOG={limit * 2} for the gateway"
    if count >= limit:
        return warn(seen, "the queue is full: every POST gets 429", fix)
    if count >= limit * NEARLY_FULL:
        return warn(seen, "the queue is nearly full; then every POST gets 429", fix)
    return ok(seen)


@check(
    "queue.scheduled",
    "jobs with `delay_s` or `run_at` are queued when their time has come",
    "start a gateway or a worker: both put due jobs on the queue",
)
def scheduled(machine: Machine) -> Finding:
    """Gateways and workers move due jobs to the queue."""
    now_ms = machine.queue.now_ms
    schedules = [(partition.client, partition.keys.scheduled) for partition in machine.partitions]
    total = sum(client.zcard(key) for client, key in schedules)
    late_ms = now_ms - OVERDUE_S * 1000
    overdue = sum(client.zcount(key, "-inf", late_ms) for client, key in schedules)
    if not overdue:
        return ok(f"{plural(total, 'job')} waiting for their time")
    firsts = [client.zrange(key, 0, 0, withscores=True) for client, key in schedules]
    due_ms = min(score for first in firsts for _, score in first)
    late = format_duration((now_ms - due_ms) / 1000)
    cause = "nobody puts due jobs on the queue: neither a gateway nor a worker runs"
    return fail(
        f"{plural(overdue, 'job')} overdue, by up to {late}", cause, machine.remedies.start_worker
    )


@check(
    "queue.dead_letters",
    "nothing was given up",
    "`curl -s localhost:8080/v1/dlq/groups` tells why; `POST /v1/dlq/redrive` tries again",
)
def dead_letters(machine: Machine) -> Finding:
    """Messages that could not become a finished job."""
    streams = [(partition.client, partition.keys.dead_letters) for partition in machine.partitions]
    count = sum(client.xlen(key) for client, key in streams)
    if not count:
        return ok("none")
    newest = [
        DeadLetter.from_entry(*entry)
        for client, key in streams
        for entry in client.xrevrange(key, "+", "-", count=1)
    ]
    newest.sort(key=lambda letter: partitioned_queue.dead_letter_id(letter.id, 0))
    last = newest[-1] if newest else DeadLetter.from_entry(b"0-0", {})
    url = f"{machine.url}/v1/dlq"
    return warn(
        f"{plural(count, 'dead letter')}; the last: {printable(last.reason)}",
        "messages that no worker could make a finished job of",
        f"curl -s {url}; then POST {url}/redrive to try again, or DELETE",
    )


@check(
    "queue.audit",
    "the last audit of all jobs was not long ago and found nothing",
    "`sluice audit` (or `sluice audit --local`) names the jobs",
)
def audit(machine: Machine) -> Finding:
    """Workers check the integrity of all jobs every AUDIT_EVERY_S."""
    record = AuditRecord.from_values(
        machine.server.client.hmget(machine.keys.audit, list(AUDIT_FIELDS))
    )
    if not record.last_ts:
        return note("no audit yet", "the first worker makes one after AUDIT_EVERY_S", _AUDIT)
    age_s = max(0.0, (machine.queue.now_ms - record.last_ts) / 1000)
    seen = f"{plural(record.last_jobs, 'job')} {format_duration(age_s)} ago"
    if record.last_violations:
        found = plural(record.last_violations, "violation")
        return fail(f"{seen}: {found}", "a promise about a job was broken", _AUDIT)
    every_s = machine.worker_settings.audit_every_s
    if every_s and age_s > AUDITS_MISSED * every_s + 60:
        cause = f"workers should audit every {format_duration(every_s)}"
        return warn(seen, cause, f"{_AUDIT}; {machine.remedies.log_of('redis-echo-worker')}")
    if record.violations_total:
        past = plural(record.violations_total, "violation")
        return note(f"{seen}, no violation", f"{past} in earlier audits", _AUDIT)
    return ok(f"{seen}, no violation")


_AUDIT = "sluice audit --local"


@check(
    "queue.versions",
    "all workers are of the same version as this command",
    "`sudo systemctl restart redis-echo-worker 'redis-worker@*'`",
)
def versions(machine: Machine) -> Finding:
    """After an upgrade without a restart, a worker still runs the old code."""
    found = sorted({beat.version for beat in machine.queue.workers if beat.version})
    if not found:
        raise CheckSkipped("no worker tells its version")
    if found == [machine.version]:
        return ok(f"workers {found[0]}")
    return warn(
        printable(f"workers {', '.join(found)}, this command {machine.version}"),
        "an upgrade was made without restarting them",
        machine.remedies.restart("redis-echo-worker", "'redis-worker@*'"),
    )


CHECKS = (
    key_types, group, workers, consumers, pending, waiting, backlog, scheduled, dead_letters,
    audit, versions,
)  # fmt: skip

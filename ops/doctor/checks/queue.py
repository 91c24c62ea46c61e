"""Checks of the queue: its keys, consumers, waiting jobs, dead letters and integrity."""

from __future__ import annotations

from sluice.common import codec
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.queue import paused_key
from sluice.common.contracts.stats import RESOLUTIONS, StatsKeys
from sluice.common.jobs import partitioned_queue
from sluice.common.jobs.audit.report import AUDIT_FIELDS, AuditRecord
from sluice.common.jobs.queue import DeadLetter
from sluice.common.text import plural
from sluice.ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from sluice.ops.doctor.machine import Machine
from sluice.ops.terminal import format_duration, printable

#: A message whose lease was not renewed for this many lease times has no worker.
STALE_LEASES = 3
#: Seconds that a message may wait for a worker, and a scheduled job may be late.
LONG_WAIT_S = 60.0
OVERDUE_S = 15.0
#: Share of BACKPRESSURE_MAX_BACKLOG for a warning.
NEARLY_FULL = 0.8
#: An audit is overdue after this many AUDIT_EVERY_S.
AUDITS_MISSED = 3
RESUME = "`sluice queue resume`, once the reason no longer applies"


@check(
    "queue.keys",
    "the keys in Redis have the types of the contract",
    "`redis-cli RENAME KEY KEY.renamed`, and find the program that wrote it",
)
def key_types(machine: Machine) -> Finding:
    """Another program may use the same names."""
    keys, lanes = machine.keys, machine.worker_settings.lane_names
    expected: dict[str, str] = {}
    found: dict[str, str] = {}
    for partition in machine.partitions:
        types = _partition_types(partition.keys) | (
            _global_types(keys) if partition.keys == keys else {}
        )
        types |= {partition.keys.for_lane(lane).stream: "stream" for lane in lanes}
        found |= {key: codec.decode_text(partition.client.type(key)) for key in types}
        expected |= types
    wrong = [key for key, kind in found.items() if kind not in (expected[key], "none")]
    if wrong:
        seen = ", ".join(f"{key} is a {found[key]}, not a {expected[key]}" for key in wrong)
        cause = "another program uses the same key names in this Redis"
        return fail(
            seen, cause, f"{machine.server.target.cli} RENAME {wrong[0]} {wrong[0]}.renamed"
        )
    if all(found[partition.keys.queue] == "none" for partition in machine.partitions):
        return note(f"{keys.queue} does not exist yet", "no job was queued and no worker has run")
    return ok(f"{keys.queue} and the other keys have the right types")


def _partition_types(keys: JobKeys) -> dict[str, str]:
    """The keys of each partition and their types."""
    return {
        keys.queue: "stream",
        keys.dead_letters: "stream",
        keys.scheduled: "zset",
        keys.counts: "hash",
        keys.index: "zset",
    }


def _global_types(keys: JobKeys) -> dict[str, str]:
    """The keys that exist only once and their types."""
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
    "the consumer group of the queue exists",
    "start a worker; it creates the group",
)
def group(machine: Machine) -> Finding:
    name = machine.worker_settings.worker_group
    if machine.queue.has_group is None:
        raise CheckSkipped("this Redis user lacks the permission")
    if machine.queue.has_group:
        return ok(f"{name}, with {plural(len(machine.queue.consumers), 'consumer')}")
    if not machine.queue.reading.length:
        return note(
            f"the group {name} does not exist yet",
            "no worker has run on this Redis",
            machine.remedies.start_worker,
        )
    cause = "no worker has run with this WORKER_GROUP and QUEUE_STREAM_KEY"
    return fail(
        f"{plural(machine.queue.reading.length, 'job')}, but no group {name}",
        cause,
        machine.remedies.start_worker,
    )


@check(
    "queue.workers",
    "at least one worker is connected, and workers accept jobs",
    "`sudo systemctl start redis-echo-worker`, or `python -m sluice.worker`",
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
            printable(f"{holding[0].consumer} takes no new jobs: {holding[0].holding_why}"),
            "see host.memory and jetson.temperature; the limits are MIN_AVAILABLE_MB, "
            "MAX_MEMORY_PRESSURE and MAX_TEMPERATURE_C",
        )
    if all(beat.draining for beat in alive):
        return warn(seen, "all workers are stopping", machine.remedies.start_worker)
    return ok(seen)


def _no_heartbeat(machine: Machine) -> Finding:
    lately_ms = 3 * machine.worker_settings.block_ms + 10_000
    reading = [consumer for consumer in machine.queue.consumers if consumer.idle_ms < lately_ms]
    if reading:
        names = printable(", ".join(consumer.name for consumer in reading[:8]))
        return note(
            f"no worker sends heartbeats, but {names} read from the queue recently",
            "these consumers are third-party workers, or have just stopped",
        )
    waiting = machine.queue.reading.waiting or 0
    return fail(
        f"no workers connected, {plural(waiting, 'job')} waiting",
        "no worker is running",
        machine.remedies.start_worker,
    )


@check(
    "queue.consumers",
    "no inactive consumer holds messages",
    "start a worker; it takes the messages over once their leases have expired",
)
def consumers(machine: Machine) -> Finding:
    """The messages of a dead worker stay with its consumer until another worker claims them."""
    if machine.queue.has_group is None:
        raise CheckSkipped("this Redis user lacks the permission")
    limit_ms = STALE_LEASES * machine.worker_settings.lease_ms
    inactive = [
        consumer
        for consumer in machine.queue.consumers
        if consumer.pending and consumer.idle_ms > limit_ms
    ]
    if not inactive:
        return ok(
            f"{plural(len(machine.queue.consumers), 'consumer')}, none inactive with pending jobs"
        )
    names = ", ".join(
        f"{consumer.name} ({consumer.pending} pending, inactive for "
        f"{format_duration(consumer.idle_ms / 1000)})"
        for consumer in inactive[:8]
    )
    alive = {beat.consumer for beat in machine.queue.workers}
    if any(consumer.name in alive for consumer in inactive):
        cause = "the worker sends heartbeats but does not read from the queue"
        return warn(printable(names), cause, machine.remedies.restart("redis-echo-worker"))
    cause = "the worker is gone, and no other worker has claimed its messages"
    return warn(printable(names), cause, machine.remedies.start_worker)


@check(
    "queue.pending",
    "the leases of all messages in progress are renewed",
    "start a worker; if one is running, see `journalctl -u redis-echo-worker`",
)
def pending(machine: Machine) -> Finding:
    """Workers renew a lease after a third of its time, so an idle message has no worker."""
    reading = machine.queue.reading
    if reading.pending is None or reading.idle_ms is None:
        raise CheckSkipped("this Redis user lacks the permission")
    idle_s, lease_s = reading.idle_ms / 1000, machine.worker_settings.lease_ms / 1000
    if not reading.pending:
        return ok("no messages in progress")
    seen = f"{reading.pending} in progress, last renewed at most {format_duration(idle_s)} ago"
    if idle_s <= STALE_LEASES * lease_s:
        return ok(seen)
    cause = f"the lease of {format_duration(lease_s)} has expired, and no worker claimed the job"
    if machine.queue.workers:
        return warn(seen, cause, machine.remedies.log_of("redis-echo-worker"))
    return fail(seen, cause, machine.remedies.start_worker)


@check(
    "queue.waiting",
    f"no job waits longer than {LONG_WAIT_S:.0f} s for a worker",
    "start more workers (`systemctl enable --now redis-worker@2`), or increase `MAX_INFLIGHT`",
)
def waiting(machine: Machine) -> Finding:
    """Checks the age of the oldest message, which is more significant than their number."""
    reading = machine.queue.reading
    if reading.waiting is None or reading.oldest_ms is None:
        raise CheckSkipped("this Redis user has no permission to read the queue")
    if not reading.oldest_ms:
        return ok("no jobs waiting")
    age_s = max(0.0, (machine.queue.now_ms - reading.oldest_ms) / 1000)
    seen = f"{reading.waiting} waiting, the oldest for {format_duration(age_s)}"
    if age_s < LONG_WAIT_S:
        return ok(seen)
    if not machine.queue.workers:
        return fail(seen, "no workers connected", machine.remedies.start_worker)
    if any(beat.paused for beat in machine.queue.workers):
        return warn(seen, "the queue is paused", RESUME)
    busy = all(beat.in_flight >= beat.max_inflight for beat in machine.queue.workers)
    cause = (
        "all workers are busy"
        if busy
        else "the workers have free slots but take no jobs: they are stuck"
    )
    fix = f"add a worker: {machine.remedies.one_more_worker}; or increase MAX_INFLIGHT"
    return warn(seen, cause, fix)


@check(
    "queue.backlog",
    "the number of waiting and running jobs is well below `BACKPRESSURE_MAX_BACKLOG`",
    "start more workers, or increase `BACKPRESSURE_MAX_BACKLOG`",
)
def backlog(machine: Machine) -> Finding:
    """At the limit, every POST gets a 429."""
    reading, limit = machine.queue.reading, machine.gateway_settings.backpressure_max_backlog
    if reading.waiting is None or reading.pending is None:
        raise CheckSkipped("this Redis user lacks the permission")
    count = reading.waiting + reading.pending
    seen = f"{count} of {limit}"
    fix = f"start more workers, or set BACKPRESSURE_MAX_BACKLOG={limit * 2} for the gateway"
    if count >= limit:
        return warn(seen, "the queue is full; every POST gets a 429", fix)
    if count >= limit * NEARLY_FULL:
        return warn(seen, "the queue is almost full; when it is, every POST gets a 429", fix)
    return ok(seen)


@check(
    "queue.scheduled",
    "jobs with `delay_s` or `run_at` are queued when they are due",
    "start a gateway or a worker; both enqueue due jobs",
)
def scheduled(machine: Machine) -> Finding:
    """Gateways and workers enqueue due jobs."""
    now_ms = machine.queue.now_ms
    schedules = [(partition.client, partition.keys.scheduled) for partition in machine.partitions]
    total = sum(client.zcard(key) for client, key in schedules)
    late_ms = now_ms - OVERDUE_S * 1000
    overdue = sum(client.zcount(key, "-inf", late_ms) for client, key in schedules)
    if not overdue:
        return ok(plural(total, "scheduled job"))
    firsts = [client.zrange(key, 0, 0, withscores=True) for client, key in schedules]
    due_ms = min(score for first in firsts for _, score in first)
    late = format_duration((now_ms - due_ms) / 1000)
    cause = "due jobs are not enqueued, because neither a gateway nor a worker is running"
    return fail(
        f"{plural(overdue, 'job')} overdue, by up to {late}", cause, machine.remedies.start_worker
    )


@check(
    "queue.dead_letters",
    "there are no dead letters",
    "`sluice dlq groups` shows the causes; `sluice dlq redrive` or `sluice dlq purge` them",
)
def dead_letters(machine: Machine) -> Finding:
    """Dead letters are jobs that failed for good, and invalid messages."""
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
    at = f"--url {machine.url}"
    return warn(
        f"{plural(count, 'dead letter')}; the last: {printable(last.reason)}",
        "these jobs failed for good, or their messages were invalid",
        f"sluice dlq groups {at}; then redrive or purge them: sluice dlq redrive --all {at}",
    )


@check(
    "queue.audit",
    "the last integrity check is recent and found no violations",
    "`sluice audit` (or `sluice audit --local`) lists the jobs",
)
def audit(machine: Machine) -> Finding:
    """Workers check the integrity of all jobs every AUDIT_EVERY_S."""
    record = AuditRecord.from_values(
        machine.server.client.hmget(machine.keys.audit, list(AUDIT_FIELDS))
    )
    if not record.last_ts:
        return note("no audit yet", "workers run the first one after AUDIT_EVERY_S", _AUDIT)
    age_s = max(0.0, (machine.queue.now_ms - record.last_ts) / 1000)
    seen = f"{plural(record.last_jobs, 'job')} checked {format_duration(age_s)} ago"
    if record.last_violations:
        found = plural(record.last_violations, "violation")
        return fail(f"{seen}: {found}", "some jobs violate the integrity rules", _AUDIT)
    every_s = machine.worker_settings.audit_every_s
    if every_s and age_s > AUDITS_MISSED * every_s + 60:
        cause = f"workers should run an audit every {format_duration(every_s)}"
        return warn(seen, cause, f"{_AUDIT}; {machine.remedies.log_of('redis-echo-worker')}")
    if record.violations_total:
        past = plural(record.violations_total, "violation")
        return note(f"{seen}, no violations", f"{past} in earlier audits", _AUDIT)
    return ok(f"{seen}, no violations")


_AUDIT = "sluice audit --local"


@check(
    "queue.versions",
    "workers and command line have the same version",
    "`sudo systemctl restart redis-echo-worker 'redis-worker@*'`",
)
def versions(machine: Machine) -> Finding:
    """After an upgrade without a restart, a worker still runs the old code."""
    found = sorted({beat.version for beat in machine.queue.workers if beat.version})
    if not found:
        raise CheckSkipped("no worker reports its version")
    if found == [machine.version]:
        return ok(f"workers {found[0]}")
    return warn(
        printable(f"workers {', '.join(found)}, command line {machine.version}"),
        "the workers were not restarted after an upgrade",
        machine.remedies.restart("redis-echo-worker", "'redis-worker@*'"),
    )


CHECKS = (
    key_types, group, workers, consumers, pending, waiting, backlog, scheduled, dead_letters,
    audit, versions,
)  # fmt: skip

"""The checks behind `/v1/status`, and the overall status as the worst of them.

`fail` means that the gateway cannot serve because Redis is unreachable. Every other problem is a
`warn`: jobs are still accepted or cleanly rejected, and none is lost.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from pydantic import BaseModel, Field

from sluice.common.contracts.images import ImageKeys
from sluice.common.contracts.workers import ModelState
from sluice.common.jobs.audit.report import AuditRecord
from sluice.common.observability.heartbeats import Heartbeat
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.text import plural
from sluice.gateway.features.images.metrics import ImageFacts
from sluice.gateway.http.paths import WORKFLOW_DEAD_WEBHOOKS
from sluice.gateway.jobs.backpressure import PressureState, PressureView
from sluice.gateway.observability.snapshot.redis import RedisFacts, WorkflowFacts
from sluice.gateway.observability.status.checks import (
    OLD_S,
    Check,
    Level,
    LimitCheck,
    MaySee,
    RedisCheck,
    WaitingCheck,
    full_partitions,
    limit_checks,
    redis_checks,
    waiting_checks,
    warning_fields,
)

#: Share of the backlog limit from which the queue check warns.
BACKLOG_HIGH = 0.8
#: Clock difference in seconds from which the clock check warns.
SKEW_S = 1.0


class WorkersCheck(Check):
    """Live workers."""

    number: int = 0
    busy: int = Field(0, description="Running jobs.")
    slots: int = Field(0, description="Jobs that can run at once.")
    draining: int = 0
    holding: int = Field(
        0, description="Workers that take no jobs because of memory pressure or temperature."
    )
    oldest_heartbeat_s: float | None = None


class QueueCheck(Check):
    """The job queue."""

    depth: int | None = Field(None, description="Messages not yet delivered to a worker.")
    pending: int | None = Field(
        None, description="Messages delivered to workers and not yet finished."
    )
    backlog_limit: int
    oldest_age_s: float | None = None
    drain_per_s: float
    paused: bool | None = Field(
        None, description="The queue is paused: workers take no further jobs. See /v1/queues."
    )


class NumberCheck(Check):
    """A plain count."""

    number: int | None = None


class WorkflowCheck(Check):
    """Workflow jobs, and their webhooks."""

    running: int | None = Field(None, description="Workflow jobs with a running step.")
    waiting_input: int | None = Field(None, description="Workflow jobs that wait for a review.")
    webhooks_waiting: int | None = Field(None, description="Webhooks with pending deliveries.")
    webhooks_dead: int | None = Field(
        None, description="Deliveries that failed after all attempts."
    )


class ImageCheck(Check):
    """Images, and the results that pipelines reported for them."""

    inflight: int | None = Field(None, description="Uploaded images that are not finished.")
    results_lag: int | None = Field(None, description="Results not yet delivered to a gateway.")
    results_pending: int | None = Field(
        None, description="Results delivered to a gateway and not yet stored."
    )
    dead_results: int | None = Field(None, description="Dead-lettered results.")
    detectors: dict[str, int] = Field(
        {},
        description="Number of workers by detector of faces and licence plates; `none` for "
        "workers without a detector.",
    )


class PressureCheck(Check):
    """Memory and temperature of this machine."""

    state: PressureState = Field(
        description="`accepting`; `holding`: jobs are accepted but not started; `refusing`."
    )
    memory_pressure: float | None = Field(
        None, description="Memory pressure (PSI `full avg10`, percent)."
    )
    available_mb: int | None = Field(None, description="Available memory in megabytes.")
    temperature_c: float | None = Field(None, description="Temperature of the hottest sensor.")


class ModelCheck(Check):
    """The model servers that workers use."""

    number: int = Field(0, description="Workers with a model server.")
    ready: int = Field(0, description="Workers whose model server is ready.")
    busy: int = Field(0, description="Model requests in progress.")
    slots: int = Field(0, description="Model requests that can run at once.")


class ClockCheck(Check):
    """Clock difference between this machine and Redis."""

    skew_ms: float | None = Field(
        None, description="Milliseconds by which the clock of Redis is ahead."
    )


class AuditCheck(Check):
    """The last integrity check of all jobs."""

    last_ts: int | None = Field(
        None, description="Start of the last check in Unix milliseconds; 0 if there was none."
    )
    violations: int | None = None
    lost_total: int | None = Field(
        None, description="Lost jobs found by all checks so far. Must stay 0."
    )


class Checks(BaseModel):
    """The checks by component. Each component is a list, as in the draft: `redis` has an entry per
    server, `limits` per limit, `waiting` per task, and the others have one entry."""

    redis: list[RedisCheck]
    workers: list[WorkersCheck]
    queue: list[QueueCheck]
    scheduled: list[NumberCheck]
    dead_letters: list[NumberCheck]
    workflows: list[WorkflowCheck]
    images: list[ImageCheck]
    pressure: list[PressureCheck]
    model: list[ModelCheck]
    limits: list[LimitCheck]
    waiting: list[WaitingCheck]
    clock: list[ClockCheck]
    audit: list[AuditCheck]

    def each(self) -> Iterator[tuple[str, Check]]:
        for name in type(self).model_fields:
            for check in getattr(self, name):
                yield name, check


class StatusView(BaseModel):
    """Health status in the format of draft-inadarei-api-health-check."""

    status: Level = Field(description="The worst status of all checks.")
    version: str = Field(description="Version of the API.", examples=["1"])
    release_id: str = Field(alias="releaseId", examples=["0.2.0"])
    description: str = "Sluice gateway"
    output: str | None = Field(None, description="Problems found; absent if there are none.")
    uptime_s: float = Field(description="Seconds since this gateway started.")
    time_ms: int = Field(description="Current time in Unix milliseconds.")
    checks: Checks


def run_checks(
    settings: GatewaySettings,
    facts: RedisFacts | None,
    drain_per_s: float,
    pressure: PressureView,
    may_see: MaySee = lambda job_id: True,
) -> Checks:
    """Run every check; `facts` is None if Redis did not answer."""
    return Checks(
        redis=redis_checks(facts),
        workers=[_workers(None if facts is None else facts.workers)],
        queue=[_queue(settings, facts, drain_per_s)],
        scheduled=[NumberCheck(number=None if facts is None else facts.scheduled)],
        dead_letters=[_dead_letters(None if facts is None else facts.dead_letters)],
        workflows=[_workflows(WorkflowFacts() if facts is None else facts.workflows)],
        images=[_images(facts, ImageKeys(settings.keys.tag))],
        pressure=[_pressure(pressure)],
        model=[_model([] if facts is None else facts.workers)],
        limits=limit_checks(facts, may_see),
        waiting=waiting_checks(facts),
        clock=[_clock(None if facts is None else facts.clock_skew_s)],
        audit=[_audit(None if facts is None else facts.audits)],
    )


def overall(checks: Checks) -> tuple[Level, str | None]:
    """The worst status, and all problems as one text."""
    found = [(name, check) for name, check in checks.each() if check.status is not Level.PASS]
    if not found:
        return Level.PASS, None
    failed = any(check.status is Level.FAIL for _, check in found)
    output = "; ".join(f"{name}: {check.output}" for name, check in found)
    return (Level.FAIL if failed else Level.WARN), output


def _workers(workers: Sequence[Heartbeat] | None) -> WorkersCheck:
    if workers is None:
        return WorkersCheck()
    warnings = []
    if not any(not beat.draining for beat in workers):
        warnings.append("no worker takes jobs; accepted jobs wait")
    warnings += [
        f"{beat.consumer} takes no jobs: {beat.holding_why}"
        for beat in workers
        if beat.under_pressure
    ]
    ages = [beat.age_s() for beat in workers]
    return WorkersCheck(
        number=len(workers),
        busy=sum(beat.in_flight for beat in workers),
        slots=sum(beat.max_inflight for beat in workers),
        draining=sum(beat.draining for beat in workers),
        holding=sum(beat.under_pressure for beat in workers),
        oldest_heartbeat_s=round(max(ages), 3) if ages else None,
        **warning_fields(warnings),
    )


def _queue(settings: GatewaySettings, facts: RedisFacts | None, drain_per_s: float) -> QueueCheck:
    limit = settings.backpressure_max_backlog
    drain_per_s = round(drain_per_s, 3)
    if facts is None:
        return QueueCheck(backlog_limit=limit, drain_per_s=drain_per_s)
    warnings = []
    if facts.paused is not None:
        why = f": {facts.paused.why}" if facts.paused.why else ""
        by = facts.paused.by or "an unknown caller"
        warnings.append(f"paused by {by}{why}; accepted jobs wait")
    if facts.backlog is not None and facts.backlog >= limit * BACKLOG_HIGH:
        warnings.append(f"{facts.backlog} of {plural(limit, 'job')} wait or run")
    warnings += full_partitions(
        facts, settings.partitions.limit_per_partition(limit) * BACKLOG_HIGH
    )
    age_s = facts.oldest_age_s
    if age_s is not None and age_s >= OLD_S:
        warnings.append(f"the oldest job has waited for {age_s:.0f} s")
    return QueueCheck(
        depth=facts.queue.waiting,
        pending=facts.queue.pending,
        backlog_limit=limit,
        oldest_age_s=None if age_s is None else round(age_s, 3),
        drain_per_s=drain_per_s,
        paused=facts.paused is not None,
        **warning_fields(warnings),
    )


def _workflows(numbers: WorkflowFacts) -> WorkflowCheck:
    dead = numbers.webhooks_dead
    warnings = (
        [
            plural(dead, "webhook delivery", "webhook deliveries")
            + f" failed after all attempts, see {WORKFLOW_DEAD_WEBHOOKS}"
        ]
        if dead
        else []
    )
    return WorkflowCheck(**asdict(numbers), **warning_fields(warnings))


def _images(seen: RedisFacts | None, keys: ImageKeys) -> ImageCheck:
    facts = ImageFacts() if seen is None else seen.images
    dead = facts.dead_results
    where = f"the stream {keys.dead_results}"
    warnings = [f"{plural(dead, 'invalid result')}, see {where}"] if dead else []
    detectors = Counter(
        beat.images.detector
        for beat in ([] if seen is None else seen.workers)
        if beat.images is not None and beat.images.detector
    )
    return ImageCheck(**asdict(facts), detectors=detectors, **warning_fields(warnings))


def _dead_letters(number: int | None) -> NumberCheck:
    warnings = [f"{plural(number, 'dead letter')} to review, see /v1/dlq"] if number else []
    return NumberCheck(number=number, **warning_fields(warnings))


def _pressure(pressure: PressureView) -> PressureCheck:
    seen = pressure.readings
    return PressureCheck(
        state=pressure.state,
        memory_pressure=seen.memory_pressure,
        available_mb=seen.available_mb,
        temperature_c=seen.temperature_c,
        **warning_fields(pressure.reasons),
    )


def _model(workers: Sequence[Heartbeat]) -> ModelCheck:
    found = [
        (beat.consumer, beat.model)
        for beat in workers
        if beat.model is not None and beat.model.state is not ModelState.ABSENT
    ]
    ready = [model for _, model in found if model.state is ModelState.READY]
    by_problem: dict[tuple[str, str], list[str]] = {}
    for consumer, model in found:
        if model.state is not ModelState.READY or model.reason:
            by_problem.setdefault((model.state.value, model.reason), []).append(consumer)
    warnings = [
        f"{_first_of(consumers)} ({state}): {reason or 'no answer'}"
        for (state, reason), consumers in by_problem.items()
    ]
    return ModelCheck(
        number=len(found),
        ready=len(ready),
        busy=sum(model.busy for _, model in found),
        slots=sum(model.slots for model in ready),
        **warning_fields(warnings),
    )


def _first_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _clock(skew_s: float | None) -> ClockCheck:
    if skew_s is None:
        return ClockCheck()
    warnings = []
    if abs(skew_s) >= SKEW_S:
        warnings.append(f"the clock of Redis is {skew_s:+.1f} s off; run NTP on both machines")
    return ClockCheck(skew_ms=round(skew_s * 1000, 1), **warning_fields(warnings))


def _audit(audits: AuditRecord | None) -> AuditCheck:
    if audits is None:
        return AuditCheck()
    warnings = []
    if audits.last_violations:
        warnings.append(f"{plural(audits.last_violations, 'violation')}, see /v1/audit")
    return AuditCheck(
        last_ts=audits.last_ts,
        violations=audits.last_violations,
        lost_total=audits.lost_total,
        **warning_fields(warnings),
    )


def status_view(checks: Checks, release: str, started_s: float) -> StatusView:
    level, output = overall(checks)
    now_s = time.time()
    return StatusView(
        status=level,
        version="1",
        releaseId=release,
        output=output,
        uptime_s=round(now_s - started_s, 3),
        time_ms=int(now_s * 1000),
        checks=checks,
    )

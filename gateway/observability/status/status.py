"""How Sluice is, as far as this gateway can tell: each part on its own, and the worst of them.

`fail` is kept for a gateway that cannot serve, which is one without Redis. All else that needs an
eye is `warn`: jobs are still taken, or refused in good order, and nothing is lost.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from pydantic import BaseModel, Field

from common.contracts.images import ImageKeys
from common.contracts.workers import ModelState
from common.jobs.audit.report import AuditRecord
from common.observability.heartbeats import Heartbeat
from common.settings.gateway import GatewaySettings
from common.text import plural
from gateway.features.images.metrics import ImageFacts
from gateway.http.paths import WORKFLOW_DEAD_WEBHOOKS
from gateway.jobs.backpressure import PressureState, PressureView
from gateway.observability.snapshot.redis import RedisFacts, WorkflowFacts
from gateway.observability.status import checks as status_limits
from gateway.observability.status import checks as status_redis
from gateway.observability.status.checks import (
    Check,
    Level,
    LimitCheck,
    MaySee,
    RedisCheck,
    WaitingCheck,
    warning_fields,
)

#: From here on somebody should look.
BACKLOG_HIGH = 0.8
OLD_S = 60.0
SKEW_S = 1.0


class WorkersCheck(Check):
    """Those who do the jobs."""

    number: int = 0
    busy: int = Field(0, description="Jobs that run.")
    slots: int = Field(0, description="Jobs that could run at once.")
    draining: int = 0
    holding: int = Field(0, description="Workers that memory or heat keep from taking jobs.")
    oldest_heartbeat_s: float | None = None


class QueueCheck(Check):
    """What waits."""

    depth: int | None = Field(None, description="Messages that no worker was given yet.")
    pending: int | None = Field(None, description="Messages that workers have.")
    backlog_limit: int
    oldest_age_s: float | None = None
    drain_per_s: float
    paused: bool | None = Field(None, description="No worker takes another job; see /v1/queues.")


class NumberCheck(Check):
    """How many there are."""

    number: int | None = None


class WorkflowCheck(Check):
    """Workflow jobs, and their webhooks."""

    running: int | None = Field(None, description="Jobs of which a step runs.")
    waiting_input: int | None = Field(None, description="Jobs that wait for a person.")
    webhooks_waiting: int | None = Field(None, description="Webhooks with something left to tell.")
    webhooks_dead: int | None = Field(None, description="Deliveries that were given up.")


class ImageCheck(Check):
    """Images, and what pipelines told of them."""

    inflight: int | None = Field(None, description="Uploaded, and not ended.")
    results_lag: int | None = Field(None, description="Results that no gateway was given yet.")
    results_pending: int | None = Field(None, description="Results that gateways work on.")
    dead_results: int | None = Field(None, description="Results that were put aside.")
    detectors: dict[str, int] = Field(
        {},
        description="Who looks for faces and plates in images, and how many workers have it so; "
        "`none` for nobody.",
    )


class PressureCheck(Check):
    """Whether the machine has enough memory and is cool enough for new work."""

    state: PressureState = Field(description="How new jobs fare: `holding` accepts them to wait.")
    memory_pressure: float | None = Field(
        None, description="Percent of time in which every task stood still for want of memory."
    )
    available_mb: int | None = Field(None, description="Memory that is still to be had.")
    temperature_c: float | None = Field(None, description="The hottest sensor.")


class ModelCheck(Check):
    """The model servers that workers ask."""

    number: int = Field(0, description="Workers that have one.")
    ready: int = Field(0, description="Of those, the ones whose server can serve.")
    busy: int = Field(0, description="Answers that are made.")
    slots: int = Field(0, description="Answers that could be made at once.")


class ClockCheck(Check):
    """Whether this machine and Redis agree on the time."""

    skew_ms: float | None = Field(None, description="How far Redis is ahead.")


class AuditCheck(Check):
    """What the last audit of all jobs found."""

    last_ts: int | None = Field(None, description="When it began, Unix milliseconds; 0 for never.")
    violations: int | None = None
    lost_total: int | None = Field(None, description="Lost jobs, over all audits. Must stay 0.")


class Checks(BaseModel):
    """Each part as a list, as the draft has it: of one, or of each limit and each waiting task; of
    each server, where partitions lie on several."""

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
    """How it is, in the shape of draft-inadarei-api-health-check."""

    status: Level = Field(description="The worst of all parts.")
    version: str = Field(description="Of the API.", examples=["1"])
    release_id: str = Field(alias="releaseId", examples=["0.1.0"])
    description: str = "Sluice gateway"
    output: str | None = Field(None, description="What is wrong; only where something is.")
    uptime_s: float = Field(description="Seconds since this gateway began.")
    time_ms: int = Field(description="Now, Unix milliseconds.")
    checks: Checks


def run_checks(
    settings: GatewaySettings,
    facts: RedisFacts | None,
    drain_per_s: float,
    pressure: PressureView,
    may_see: MaySee = lambda job_id: True,
) -> Checks:
    """Every part, from what Redis told; nothing, where it did not answer."""
    return Checks(
        redis=status_redis.redis_checks(facts),
        workers=[_workers(None if facts is None else facts.workers)],
        queue=[_queue(settings, facts, drain_per_s)],
        scheduled=[NumberCheck(number=None if facts is None else facts.scheduled)],
        dead_letters=[_dead_letters(None if facts is None else facts.dead_letters)],
        workflows=[_workflows(WorkflowFacts() if facts is None else facts.workflows)],
        images=[_images(facts, ImageKeys(settings.keys.tag))],
        pressure=[_pressure(pressure)],
        model=[_model([] if facts is None else facts.workers)],
        limits=status_limits.limit_checks(facts, may_see),
        waiting=status_limits.waiting_checks(facts),
        clock=[_clock(None if facts is None else facts.clock_skew_s)],
        audit=[_audit(None if facts is None else facts.audits)],
    )


def overall(checks: Checks) -> tuple[Level, str | None]:
    """The worst of all, and what is wrong."""
    found = [(name, check) for name, check in checks.each() if check.status is not Level.PASS]
    if not found:
        return Level.PASS, None
    failed = any(check.status is Level.FAIL for _, check in found)
    words = "; ".join(f"{name}: {check.output}" for name, check in found)
    return (Level.FAIL if failed else Level.WARN), words


def _workers(workers: Sequence[Heartbeat] | None) -> WorkersCheck:
    if workers is None:
        return WorkersCheck()
    words = []
    if not any(not beat.draining for beat in workers):
        words.append("no worker takes jobs; what is accepted waits")
    words += [
        f"{beat.consumer} holds off: {beat.holding_why}" for beat in workers if beat.under_pressure
    ]
    ages = [beat.age_s() for beat in workers]
    return WorkersCheck(
        number=len(workers),
        busy=sum(beat.in_flight for beat in workers),
        slots=sum(beat.max_inflight for beat in workers),
        draining=sum(beat.draining for beat in workers),
        holding=sum(beat.under_pressure for beat in workers),
        oldest_heartbeat_s=round(max(ages), 3) if ages else None,
        **warning_fields(words),
    )


def _queue(settings: GatewaySettings, facts: RedisFacts | None, drain_per_s: float) -> QueueCheck:
    limit = settings.backpressure_max_backlog
    drain_per_s = round(drain_per_s, 3)
    if facts is None:
        return QueueCheck(backlog_limit=limit, drain_per_s=drain_per_s)
    words = []
    if facts.paused is not None:
        why = f": {facts.paused.why}" if facts.paused.why else ""
        words.append(f"paused by {facts.paused.by or 'somebody'}{why}; what is accepted waits")
    if facts.backlog is not None and facts.backlog >= limit * BACKLOG_HIGH:
        words.append(f"{facts.backlog} of {plural(limit, 'job')} wait or run")
    words += status_redis.full_partitions(
        facts, settings.partitions.limit_per_partition(limit) * BACKLOG_HIGH
    )
    age_s = facts.oldest_age_s
    if age_s is not None and age_s >= OLD_S:
        words.append(f"the oldest job has waited for {age_s:.0f} s")
    return QueueCheck(
        depth=facts.queue.waiting,
        pending=facts.queue.pending,
        backlog_limit=limit,
        oldest_age_s=None if age_s is None else round(age_s, 3),
        drain_per_s=drain_per_s,
        paused=facts.paused is not None,
        **warning_fields(words),
    )


def _workflows(numbers: WorkflowFacts) -> WorkflowCheck:
    dead = numbers.webhooks_dead
    words = (
        [
            plural(dead, "webhook delivery was", "webhook deliveries were")
            + f" given up, see {WORKFLOW_DEAD_WEBHOOKS}"
        ]
        if dead
        else []
    )
    return WorkflowCheck(**asdict(numbers), **warning_fields(words))


def _images(seen: RedisFacts | None, keys: ImageKeys) -> ImageCheck:
    facts = ImageFacts() if seen is None else seen.images
    dead = facts.dead_results
    where = f"the stream {keys.dead_results}"
    words = [f"{plural(dead, 'result')} could not be made sense of, see {where}"] if dead else []
    detectors = Counter(
        beat.images.detector
        for beat in ([] if seen is None else seen.workers)
        if beat.images is not None and beat.images.detector
    )
    return ImageCheck(**asdict(facts), detectors=detectors, **warning_fields(words))


def _dead_letters(number: int | None) -> NumberCheck:
    words = [f"{number} wait to be looked at, see /v1/dlq"] if number else []
    return NumberCheck(number=number, **warning_fields(words))


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
    troubled: dict[tuple[str, str], list[str]] = {}
    for consumer, model in found:
        if model.state is not ModelState.READY or model.reason:
            troubled.setdefault((model.state.value, model.reason), []).append(consumer)
    words = [
        f"{_first_of(consumers)} ({state}): {reason or 'no answer'}"
        for (state, reason), consumers in troubled.items()
    ]
    return ModelCheck(
        number=len(found),
        ready=len(ready),
        busy=sum(model.busy for _, model in found),
        slots=sum(model.slots for model in ready),
        **warning_fields(words),
    )


def _first_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _clock(skew_s: float | None) -> ClockCheck:
    if skew_s is None:
        return ClockCheck()
    words = []
    if abs(skew_s) >= SKEW_S:
        words.append(f"Redis is {skew_s:+.1f} s off; run a time service on both machines")
    return ClockCheck(skew_ms=round(skew_s * 1000, 1), **warning_fields(words))


def _audit(audits: AuditRecord | None) -> AuditCheck:
    if audits is None:
        return AuditCheck()
    words = []
    if audits.last_violations:
        words.append(f"{plural(audits.last_violations, 'broken promise')}, see /v1/audit")
    return AuditCheck(
        last_ts=audits.last_ts,
        violations=audits.last_violations,
        lost_total=audits.lost_total,
        **warning_fields(words),
    )


def status_view(checks: Checks, release: str, started_s: float) -> StatusView:
    level, words = overall(checks)
    now_s = time.time()
    return StatusView(
        status=level,
        version="1",
        releaseId=release,
        output=words,
        uptime_s=round(now_s - started_s, 3),
        time_ms=int(now_s * 1000),
        checks=checks,
    )

"""Numbers in the form Prometheus takes: each family once, whatever was counted, wherever."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from common.contracts.workers import BOUNDS, FIRST_TOKEN_BOUNDS, ModelState
from common.heartbeats import WEBHOOK_OUTCOMES, Heartbeat
from common.process import ProcessUsage
from common.version import VERSION
from gateway import metrics_names as names
from gateway.bullmq.queues import ADD_ANSWERS, BullQueues
from gateway.images.numbers import ImageNumbers, ResultOutcome, UploadOutcome
from gateway.metrics_http import BOUNDS_S, HttpNumbers
from gateway.metrics_names import Metric
from gateway.metrics_redis import RedisFacts
from gateway.sse_numbers import LAG_BOUNDS_S, SseNumbers

_KINDS = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class Families:
    """Collects samples by family; what is not known is left out, and so is an empty family."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Family]:
        return iter(self._found.values())

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """One number."""
        if value is None:
            return
        family = self._found.get(metric.name)
        if family is None:
            family = _KINDS[metric.kind](metric.name, metric.meaning, labels=metric.labels)
            self._found[metric.name] = family
        family.add_metric(labels, value)

    def add_histogram(
        self,
        metric: Metric,
        bounds: Sequence[float],
        counts: Sequence[int],
        total: float,
        *labels: str,
    ) -> None:
        """One histogram, from the counts between its bounds."""
        family = self._found.get(metric.name)
        if family is None:
            family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            self._found[metric.name] = family
        edges = [*map(floatToGoString, bounds), "+Inf"]
        buckets = list(zip(edges, itertools.accumulate(counts)))
        family.add_metric(labels, buckets, total)


def of_process(families: Families, usage: ProcessUsage, started_s: float, lag_s: float) -> None:
    """This gateway."""
    families.add(names.BUILD_INFO, 1, VERSION, platform.python_version())
    families.add(names.START_TIME, started_s)
    families.add(names.RSS, usage.rss_bytes)
    families.add(names.OPEN_FDS, usage.open_fds)
    families.add(names.CPU, usage.cpu_s)
    families.add(names.LOOP_LAG, lag_s)


def of_http(families: Families, http: HttpNumbers, at_door: Mapping[str, int]) -> None:
    """Requests."""
    families.add(names.HTTP_IN_FLIGHT, http.in_flight)
    for (route, method, code), count in http.requests():
        families.add(names.HTTP_REQUESTS, count, route, method, str(code))
    for labels, durations in http.durations():
        families.add_histogram(
            names.HTTP_DURATION, BOUNDS_S, durations.counts, durations.sum, *labels
        )
    for reason, count in http.rejections(at_door).items():
        families.add(names.HTTP_REJECTED, count, reason)


def of_streams(families: Families, clients: int, sse: SseNumbers, cut_off: int) -> None:
    """Event streams."""
    families.add(names.SSE_CLIENTS, clients)
    families.add(names.SSE_EVENTS, sse.events)
    families.add(names.SSE_BYTES, sse.bytes)
    families.add(names.SSE_RESUMES, sse.resumes)
    families.add(names.SSE_GAPS, sse.gaps)
    families.add(names.SSE_SLOW, sse.slow)
    families.add(names.SSE_SLOW_CLOSED, sse.slow_closed + cut_off)
    families.add_histogram(names.SSE_LAG, LAG_BOUNDS_S, sse.lag.counts, sse.lag.sum)


def of_images(families: Families, clients: int, numbers: ImageNumbers) -> None:
    """Images, as this gateway saw them."""
    families.add(names.IMAGE_SSE_CLIENTS, clients)
    families.add(names.IMAGE_UPLOAD_BYTES, numbers.received_bytes)
    for fared in UploadOutcome:
        families.add(names.IMAGE_UPLOADS, numbers.uploads[fared], fared.value)
    for became in ResultOutcome:
        families.add(names.IMAGE_RESULTS, numbers.results[became], became.value)


def of_bullmq(families: Families, queues: BullQueues) -> None:
    """Queues of BullMQ that this gateway feeds."""
    families.add(names.BULLMQ_SSE_CLIENTS, queues.hub.clients)
    for queue in queues.names:
        for answer in ADD_ANSWERS:
            families.add(names.BULLMQ_JOBS, queues.outcomes[queue, answer], queue, answer.value)
    for (queue, state), count in queues.depths.items():
        families.add(names.BULLMQ_DEPTH, count, queue, state)


def of_redis(families: Families, facts: RedisFacts) -> None:
    """The queue, the schedule, dead letters, audits, and Redis itself."""
    families.add(names.REDIS_RTT, facts.rtt_s)
    families.add(names.REDIS_MEMORY, facts.memory_ratio)
    families.add(names.CLOCK_SKEW, facts.clock_skew_s)
    queue = facts.queue
    families.add(names.QUEUE_DEPTH, queue.waiting)
    families.add(names.QUEUE_PENDING, queue.pending)
    for each in facts.partitions if len(facts.partitions) > 1 else ():
        families.add(names.PARTITION_BACKLOG, each.backlog, str(each.number))
    families.add(names.QUEUE_OLDEST_AGE, facts.oldest_age_s)
    families.add(names.QUEUE_IDLE, None if queue.idle_ms is None else queue.idle_ms / 1000)
    families.add(names.QUEUE_PAUSED, int(facts.paused is not None))
    families.add(names.STREAM_BYTES, queue.stream_bytes)
    families.add(names.SCHEDULED, facts.scheduled)
    families.add(names.DLQ_DEPTH, facts.dead_letters)
    families.add(names.WORKFLOWS_RUNNING, facts.workflows.running)
    families.add(names.WORKFLOWS_WAITING, facts.workflows.waiting_input)
    families.add(names.WEBHOOKS_WAITING, facts.workflows.webhooks_waiting)
    families.add(names.WEBHOOKS_DEAD, facts.workflows.webhooks_dead)
    families.add(names.IMAGES_INFLIGHT, facts.images.inflight)
    families.add(names.IMAGE_RESULTS_LAG, facts.images.results_lag)
    families.add(names.IMAGE_RESULTS_PENDING, facts.images.results_pending)
    families.add(names.IMAGE_RESULTS_DEAD, facts.images.dead_results)
    families.add(names.FINISHED, None if facts.counts is None else facts.counts.ended)
    audits = facts.audits
    if audits is not None:
        families.add(names.LOST, audits.lost_total)
        families.add(names.AUDIT_JOBS, audits.jobs_total)
        families.add(names.AUDIT_VIOLATIONS, audits.violations_total)
        families.add(names.AUDIT_LAST_VIOLATIONS, audits.last_violations)
        families.add(names.AUDIT_LAST_TIME, audits.last_ts / 1000)
        families.add(names.AUDIT_LAST_DURATION, audits.last_ms / 1000)


def of_limits(families: Families, facts: RedisFacts) -> None:
    """Places that tasks share across workers, and what waits for one."""
    for limit in facts.limits:
        families.add(names.LIMIT_PLACES, limit.places, limit.name)
        families.add(names.LIMIT_RUNNING, limit.running, limit.name)
    for task, waiting in facts.waiting.items():
        families.add(names.TASK_WAITING, waiting.number, task)
        families.add(names.TASK_WAITING_AGE, facts.age_s(waiting.oldest_ms), task)
    for beat in facts.workers:
        for task in beat.limits.closed:
            families.add(names.WORKER_CLOSED, 1, beat.consumer, task)


def of_workers(families: Families, workers: Sequence[Heartbeat]) -> None:
    """Every worker that lives; of one that does not, nothing is left."""
    families.add(names.WORKERS, len(workers))
    for beat in workers:
        _of_worker(families, beat)
        _of_tally(families, beat)
        _of_model(families, beat)
        _of_webhooks(families, beat)
    for beat in _last_of_each_host(workers):
        _of_box(families, beat)


def _of_worker(families: Families, beat: Heartbeat) -> None:
    for metric, value in (
        (names.WORKER_UP, 1),
        (names.WORKER_BUSY, beat.in_flight),
        (names.WORKER_SLOTS, beat.max_inflight),
        (names.WORKER_DEFERRED, beat.deferred),
        (names.WORKER_DRAINING, int(beat.draining)),
        (names.WORKER_HOLDING, int(beat.pressed)),
        (names.WORKER_AGE, beat.age_s()),
        (names.WORKER_START, beat.started_ms / 1000),
        (names.WORKER_LAG, beat.loop_lag_s),
        (names.WORKER_RSS, beat.rss_bytes),
        (names.WORKER_FDS, beat.open_fds),
        (names.WORKER_CPU, beat.cpu_s),
        (names.WORKER_EVENTS, beat.events),
    ):
        families.add(metric, value, beat.consumer)


def _of_tally(families: Families, beat: Heartbeat) -> None:
    for task, numbers in beat.numbers.items():
        for count, metric in names.JOB_COUNTS.items():
            families.add(metric, numbers.count(count), task, beat.consumer)
        for spread, metric in names.JOB_SPREADS.items():
            histogram = numbers.spread(spread)
            if histogram is not None:
                families.add_histogram(
                    metric, BOUNDS[spread], histogram.counts, histogram.sum, task, beat.consumer
                )


def _of_webhooks(families: Families, beat: Heartbeat) -> None:
    told = beat.webhooks
    if told is not None:
        for outcome in WEBHOOK_OUTCOMES:
            families.add(names.WEBHOOKS, getattr(told, outcome), beat.consumer, outcome)


def _of_model(families: Families, beat: Heartbeat) -> None:
    model = beat.model
    if model is None or model.state is ModelState.ABSENT:
        return
    for metric, value in (
        (names.MODEL_UP, int(model.state is ModelState.READY)),
        (names.MODEL_SLOTS, model.slots),
        (names.MODEL_BUSY, model.busy),
        (names.MODEL_ANSWERS, model.answers),
        (names.MODEL_FAILURES, model.failures),
    ):
        families.add(metric, value, beat.consumer)
    families.add(names.MODEL_TOKENS, model.prompt_tokens, beat.consumer, "prompt")
    families.add(names.MODEL_TOKENS, model.completion_tokens, beat.consumer, "completion")
    spread = model.first_token_spread
    if spread is not None:
        families.add_histogram(
            names.MODEL_FIRST_TOKEN, FIRST_TOKEN_BOUNDS, spread.counts, spread.sum, beat.consumer
        )


def _last_of_each_host(workers: Iterable[Heartbeat]) -> Iterable[Heartbeat]:
    by_host = {beat.host: beat for beat in sorted(workers, key=lambda beat: beat.seen_ms)}
    return by_host.values()


def _of_box(families: Families, beat: Heartbeat) -> None:
    box = beat.box
    families.add(names.MEMORY_PRESSURE, box.memory_pressure, beat.host)
    families.add(names.MEMORY_AVAILABLE, box.available_bytes, beat.host)
    families.add(names.TEMPERATURE, box.temperature_c, beat.host, box.hottest or "")
    families.add(names.GPU_LOAD, box.gpu_load, beat.host)
    if box.power_mode is not None:
        families.add(names.POWER_MODE, 1, beat.host, box.power_mode)

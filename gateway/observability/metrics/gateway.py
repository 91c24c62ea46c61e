"""Metrics that a gateway counts itself: definitions, and the functions that fill them."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Final

from sluice.common.process.usage import ProcessUsage
from sluice.common.version import VERSION
from sluice.gateway.events.hub import LAG_BOUNDS_S, SseMetrics
from sluice.gateway.features.bullmq.queues import ADD_ANSWERS, BullQueues
from sluice.gateway.features.images.metrics import ImageMetrics, ResultOutcome, UploadOutcome
from sluice.gateway.jobs.backpressure import PressureState
from sluice.gateway.observability.metrics.families import TASK, Metric, MetricFamilies
from sluice.gateway.observability.metrics.http import BOUNDS_S, HttpMetrics

#: Values of `gw_pressure_state`.
_PRESSURE: Final = {
    PressureState.ACCEPTING: 0,
    PressureState.HOLDING: 1,
    PressureState.REFUSING: 2,
}

UP = Metric("gw_up", "gauge", "1 if Redis answers this gateway, else 0.")
BUILD_INFO = Metric(
    "gw_build_info",
    "gauge",
    "Always 1; the labels are the versions of Sluice and Python.",
    ("version", "python"),
)
START_TIME = Metric(
    "gw_process_start_time_seconds", "gauge", "Start time of this gateway, Unix seconds."
)
RSS = Metric("gw_process_resident_memory_bytes", "gauge", "Resident memory of this gateway.")
OPEN_FDS = Metric("gw_process_open_fds", "gauge", "Open file descriptors.")
CPU = Metric("gw_process_cpu_seconds_total", "counter", "CPU time used.")
LOOP_LAG = Metric(
    "gw_event_loop_lag_seconds",
    "gauge",
    "Worst event loop lag in the last 15 seconds.",
)


def add_process(
    families: MetricFamilies, usage: ProcessUsage, started_s: float, lag_s: float, *, up: bool
) -> None:
    families.add(UP, int(up))
    families.add(BUILD_INFO, 1, VERSION, platform.python_version())
    families.add(START_TIME, started_s)
    families.add(RSS, usage.rss_bytes)
    families.add(OPEN_FDS, usage.open_fds)
    families.add(CPU, usage.cpu_s)
    families.add(LOOP_LAG, lag_s)


HTTP_REQUESTS = Metric(
    "gw_http_requests_total",
    "counter",
    "Requests answered, by route template and status code.",
    ("route", "method", "code"),
)
HTTP_DURATION = Metric(
    "gw_http_request_duration_seconds",
    "histogram",
    "Time from the request headers to the first byte of the response.",
    ("route", "method"),
)
HTTP_IN_FLIGHT = Metric("gw_http_in_flight", "gauge", "Requests and streams in progress.")
HTTP_REJECTED = Metric(
    "gw_http_rejected_total", "counter", "Rejected requests, by reason.", ("reason",)
)


def add_http(families: MetricFamilies, http: HttpMetrics, by_server: Mapping[str, int]) -> None:
    families.add(HTTP_IN_FLIGHT, http.in_flight)
    for (route, method, code), count in http.requests():
        families.add(HTTP_REQUESTS, count, route, method, str(code))
    for labels, durations in http.durations():
        families.add_histogram(HTTP_DURATION, BOUNDS_S, durations.counts, durations.sum, *labels)
    for reason, count in http.rejections(by_server).items():
        families.add(HTTP_REJECTED, count, reason)


SUBMITTED = Metric("gw_jobs_submitted_total", "counter", "Jobs accepted by this gateway.", (TASK,))
DEDUPLICATED = Metric(
    "gw_jobs_deduplicated_total",
    "counter",
    "Requests answered with an earlier job because of their Idempotency-Key.",
    (TASK,),
)


def add_jobs(
    families: MetricFamilies, submitted: Mapping[str, int], deduplicated: Mapping[str, int]
) -> None:
    """Accepted jobs, by task."""
    for task, count in submitted.items():
        families.add(SUBMITTED, count, task)
        families.add(DEDUPLICATED, deduplicated[task], task)


SSE_CLIENTS = Metric("gw_sse_clients", "gauge", "Event streams open in this process.")
SSE_EVENTS = Metric("gw_sse_events_total", "counter", "Events written to clients.")
SSE_BYTES = Metric("gw_sse_bytes_total", "counter", "Bytes written to clients.")
SSE_RESUMES = Metric("gw_sse_resumes_total", "counter", "Streams resumed with Last-Event-ID.")
SSE_GAPS = Metric("gw_sse_gap_total", "counter", "Gaps reported because events were trimmed.")
SSE_SLOW = Metric(
    "gw_sse_slow_total",
    "counter",
    "Times that a slow client lost live events and fell back to stored ones.",
)
SSE_SLOW_CLOSED = Metric(
    "gw_sse_slow_closed_total",
    "counter",
    "Streams and connections closed because the client stopped reading.",
)
SSE_LAG = Metric(
    "gw_sse_lag_seconds", "histogram", "Delay between writing and sending a live event."
)


def add_streams(families: MetricFamilies, clients: int, sse: SseMetrics, cut_off: int) -> None:
    families.add(SSE_CLIENTS, clients)
    families.add(SSE_EVENTS, sse.events)
    families.add(SSE_BYTES, sse.bytes)
    families.add(SSE_RESUMES, sse.resumes)
    families.add(SSE_GAPS, sse.gaps)
    families.add(SSE_SLOW, sse.slow)
    families.add(SSE_SLOW_CLOSED, sse.slow_closed + cut_off)
    families.add_histogram(SSE_LAG, LAG_BOUNDS_S, sse.lag.counts, sse.lag.sum)


IMAGE_UPLOADS = Metric(
    "gw_image_uploads_total", "counter", "Image uploads, by outcome.", ("outcome",)
)
IMAGE_UPLOAD_BYTES = Metric(
    "gw_image_upload_bytes_total", "counter", "Bytes received in uploads, complete or not."
)
IMAGE_RESULTS = Metric(
    "gw_image_results_total",
    "counter",
    "Image results delivered to this gateway, by outcome.",
    ("outcome",),
)
IMAGE_SSE_CLIENTS = Metric(
    "gw_image_sse_clients", "gauge", "Open event streams of images; included in gw_sse_clients."
)


def add_images(families: MetricFamilies, clients: int, numbers: ImageMetrics) -> None:
    """Image uploads and results of this gateway."""
    families.add(IMAGE_SSE_CLIENTS, clients)
    families.add(IMAGE_UPLOAD_BYTES, numbers.received_bytes)
    for upload in UploadOutcome:
        families.add(IMAGE_UPLOADS, numbers.uploads[upload], upload.value)
    for result in ResultOutcome:
        families.add(IMAGE_RESULTS, numbers.results[result], result.value)


BULLMQ_JOBS = Metric(
    "gw_bullmq_jobs_total",
    "counter",
    "Requests to add a job to a BullMQ queue, by outcome.",
    ("queue", "outcome"),
)
BULLMQ_DEPTH = Metric(
    "gw_bullmq_queue_jobs",
    "gauge",
    "Jobs in a configured BullMQ queue, by state.",
    ("queue", "state"),
)
BULLMQ_SSE_CLIENTS = Metric(
    "gw_bullmq_sse_clients",
    "gauge",
    "Open event streams of BullMQ queues and jobs; included in gw_sse_clients.",
)


def add_bullmq(families: MetricFamilies, queues: BullQueues) -> None:
    """The configured BullMQ queues."""
    families.add(BULLMQ_SSE_CLIENTS, queues.hub.clients)
    for queue in queues.names:
        for answer in ADD_ANSWERS:
            families.add(BULLMQ_JOBS, queues.outcomes[queue, answer], queue, answer.value)
    for (queue, state), count in queues.depths.items():
        families.add(BULLMQ_DEPTH, count, queue, state)


QUEUE_LIMIT = Metric(
    "gw_queue_backlog_limit", "gauge", "Depth plus pending at which new jobs get a 429."
)
DRAIN_RATE = Metric("gw_queue_drain_rate", "gauge", "Jobs finished per second, smoothed.")
PRESSURE = Metric(
    "gw_pressure_state",
    "gauge",
    "0: jobs are accepted; 1: accepted but not started (memory, temperature); 2: rejected.",
)
REDIS_POOL = Metric("gw_redis_pool_in_use", "gauge", "Pooled Redis connections in use.")


def add_backpressure(
    families: MetricFamilies,
    backlog_limit: int,
    drain_rate: float,
    pressure: PressureState,
    redis_connections: int | None,
) -> None:
    """Backpressure and Redis connections of this gateway."""
    families.add(QUEUE_LIMIT, backlog_limit)
    families.add(DRAIN_RATE, drain_rate)
    families.add(PRESSURE, _PRESSURE[pressure])
    families.add(REDIS_POOL, redis_connections)

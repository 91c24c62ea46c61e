"""Metrics read from Redis: definitions, and the functions that fill them."""

from __future__ import annotations

from sluice.gateway.observability.metrics.families import TASK, WORKER, Metric, MetricFamilies
from sluice.gateway.observability.snapshot.redis import RedisFacts

FINISHED = Metric("gw_jobs_finished_total", "counter", "Jobs finished by all workers.")
LOST = Metric(
    "gw_jobs_lost_total",
    "counter",
    "Unfinished jobs that no worker will finish, found by integrity checks. Must stay 0.",
)
QUEUE_DEPTH = Metric("gw_queue_depth", "gauge", "Messages not yet delivered to a worker.")
QUEUE_PENDING = Metric(
    "gw_queue_pending", "gauge", "Messages delivered to workers and not yet finished."
)
PARTITION_BACKLOG = Metric(
    "gw_partition_backlog",
    "gauge",
    "Depth plus pending of each partition; only with several partitions.",
    ("partition",),
)
QUEUE_OLDEST_AGE = Metric(
    "gw_queue_oldest_age_seconds", "gauge", "Time that the oldest message has waited for a worker."
)
QUEUE_IDLE = Metric(
    "gw_queue_pending_oldest_idle_seconds",
    "gauge",
    "Longest time since a pending message was last renewed; beyond the lease it is reclaimed.",
)
QUEUE_PAUSED = Metric("gw_queue_paused", "gauge", "1 while the queue is paused.")
STREAM_BYTES = Metric("gw_stream_bytes", "gauge", "Memory used by the queue stream.")
SCHEDULED = Metric("gw_scheduled_jobs", "gauge", "Scheduled jobs that are not due yet.")
DLQ_DEPTH = Metric("gw_dlq_depth", "gauge", "Dead letters.")
WORKFLOWS_RUNNING = Metric("gw_workflows_running", "gauge", "Workflow jobs with a running step.")
WORKFLOWS_WAITING = Metric(
    "gw_workflows_waiting_input", "gauge", "Workflow jobs that wait for a review."
)
WEBHOOKS_WAITING = Metric("gw_webhooks_waiting", "gauge", "Webhooks with pending deliveries.")
WEBHOOKS_DEAD = Metric(
    "gw_webhooks_dlq_depth", "gauge", "Webhook deliveries that failed after all attempts."
)
IMAGES_INFLIGHT = Metric("gw_images_inflight", "gauge", "Uploaded images that are not finished.")
IMAGE_RESULTS_LAG = Metric(
    "gw_image_results_lag", "gauge", "Image results not yet delivered to a gateway."
)
IMAGE_RESULTS_PENDING = Metric(
    "gw_image_results_pending",
    "gauge",
    "Image results delivered to a gateway and not yet stored.",
)
IMAGE_RESULTS_DEAD = Metric(
    "gw_image_results_dlq_depth", "gauge", "Dead-lettered image results, which are invalid."
)
REDIS_RTT = Metric("gw_redis_rtt_seconds", "gauge", "Time that Redis took for this scrape.")
REDIS_MEMORY = Metric(
    "gw_redis_memory_ratio",
    "gauge",
    "Memory used by Redis, as a share of maxmemory or else of the machine's memory.",
)
CLOCK_SKEW = Metric(
    "gw_clock_skew_seconds",
    "gauge",
    "Seconds by which the clock of Redis is ahead of this gateway's.",
)
AUDIT_JOBS = Metric(
    "gw_audit_jobs_checked_total", "counter", "Jobs checked by all integrity checks."
)
AUDIT_VIOLATIONS = Metric(
    "gw_audit_violations_total",
    "counter",
    "Violations found by all integrity checks; a lasting one counts each time.",
)
AUDIT_LAST_VIOLATIONS = Metric(
    "gw_audit_last_violations", "gauge", "Violations found by the last integrity check."
)
AUDIT_LAST_TIME = Metric(
    "gw_audit_last_timestamp_seconds",
    "gauge",
    "Start of the last integrity check, Unix seconds; 0 if there was none.",
)
AUDIT_LAST_DURATION = Metric(
    "gw_audit_last_duration_seconds", "gauge", "Duration of the last integrity check."
)


def add_redis(families: MetricFamilies, facts: RedisFacts) -> None:
    """The queue, the schedule, dead letters, integrity checks and Redis itself."""
    families.add(REDIS_RTT, facts.rtt_s)
    families.add(REDIS_MEMORY, facts.memory_ratio)
    families.add(CLOCK_SKEW, facts.clock_skew_s)
    queue = facts.queue
    families.add(QUEUE_DEPTH, queue.waiting)
    families.add(QUEUE_PENDING, queue.pending)
    for each in facts.partitions if len(facts.partitions) > 1 else ():
        families.add(PARTITION_BACKLOG, each.backlog, str(each.number))
    families.add(QUEUE_OLDEST_AGE, facts.oldest_age_s)
    families.add(QUEUE_IDLE, None if queue.idle_ms is None else queue.idle_ms / 1000)
    families.add(QUEUE_PAUSED, int(facts.paused is not None))
    families.add(STREAM_BYTES, queue.stream_bytes)
    families.add(SCHEDULED, facts.scheduled)
    families.add(DLQ_DEPTH, facts.dead_letters)
    families.add(WORKFLOWS_RUNNING, facts.workflows.running)
    families.add(WORKFLOWS_WAITING, facts.workflows.waiting_input)
    families.add(WEBHOOKS_WAITING, facts.workflows.webhooks_waiting)
    families.add(WEBHOOKS_DEAD, facts.workflows.webhooks_dead)
    families.add(IMAGES_INFLIGHT, facts.images.inflight)
    families.add(IMAGE_RESULTS_LAG, facts.images.results_lag)
    families.add(IMAGE_RESULTS_PENDING, facts.images.results_pending)
    families.add(IMAGE_RESULTS_DEAD, facts.images.dead_results)
    families.add(FINISHED, None if facts.counts is None else facts.counts.ended)
    audits = facts.audits
    if audits is not None:
        families.add(LOST, audits.lost_total)
        families.add(AUDIT_JOBS, audits.jobs_total)
        families.add(AUDIT_VIOLATIONS, audits.violations_total)
        families.add(AUDIT_LAST_VIOLATIONS, audits.last_violations)
        families.add(AUDIT_LAST_TIME, audits.last_ts / 1000)
        families.add(AUDIT_LAST_DURATION, audits.last_ms / 1000)


LIMIT_PLACES = Metric(
    "gw_task_limit_places", "gauge", "Slots of a limit that tasks share.", ("limit",)
)
LIMIT_RUNNING = Metric(
    "gw_task_limit_running", "gauge", "Running jobs that hold a slot of the limit.", ("limit",)
)
TASK_WAITING = Metric(
    "gw_task_waiting", "gauge", "Messages delivered to a worker that wait for a slot.", (TASK,)
)
TASK_WAITING_AGE = Metric(
    "gw_task_waiting_oldest_age_seconds",
    "gauge",
    "Time that the oldest of them has waited.",
    (TASK,),
)
WORKER_CLOSED = Metric(
    "gw_worker_task_closed",
    "gauge",
    "1 while the worker does not start this task.",
    (WORKER, TASK),
)


def add_limits(families: MetricFamilies, facts: RedisFacts) -> None:
    """Limits that tasks share across workers, and the messages that wait for a slot."""
    for limit in facts.limits:
        families.add(LIMIT_PLACES, limit.places, limit.name)
        families.add(LIMIT_RUNNING, limit.running, limit.name)
    for task, waiting in facts.waiting.items():
        families.add(TASK_WAITING, waiting.number, task)
        families.add(TASK_WAITING_AGE, facts.age_s(waiting.oldest_ms), task)
    for beat in facts.workers:
        for task in beat.limits.closed:
            families.add(WORKER_CLOSED, 1, beat.consumer, task)

"""Numbers that Redis knows: definitions, and the functions that fill them."""

from __future__ import annotations

from gateway.observability.metrics.families import TASK, WORKER, Metric, MetricFamilies
from gateway.observability.snapshot.redis import RedisFacts

FINISHED = Metric("gw_jobs_finished_total", "counter", "Jobs that have ended, on all workers.")
LOST = Metric(
    "gw_jobs_lost_total",
    "counter",
    "Jobs that audits found unfinished with nobody to finish them. Must stay 0.",
)
QUEUE_DEPTH = Metric("gw_queue_depth", "gauge", "Messages that no worker was given yet.")
QUEUE_PENDING = Metric(
    "gw_queue_pending", "gauge", "Messages that were given to workers and have not ended."
)
PARTITION_BACKLOG = Metric(
    "gw_partition_backlog",
    "gauge",
    "Depth plus pending of each partition; only where there are several.",
    ("partition",),
)
QUEUE_OLDEST_AGE = Metric(
    "gw_queue_oldest_age_seconds", "gauge", "How long the oldest message has waited for a worker."
)
QUEUE_IDLE = Metric(
    "gw_queue_pending_oldest_idle_seconds",
    "gauge",
    "Longest time that a pending message was not heard of; beyond a lease it is taken over.",
)
QUEUE_PAUSED = Metric("gw_queue_paused", "gauge", "1 while the queue is paused.")
STREAM_BYTES = Metric("gw_stream_bytes", "gauge", "Memory that the queue stream takes.")
SCHEDULED = Metric("gw_scheduled_jobs", "gauge", "Jobs that wait for their time.")
DLQ_DEPTH = Metric("gw_dlq_depth", "gauge", "Dead letters that wait to be looked at.")
WORKFLOWS_RUNNING = Metric("gw_workflows_running", "gauge", "Workflow jobs of which a step runs.")
WORKFLOWS_WAITING = Metric(
    "gw_workflows_waiting_input", "gauge", "Workflow jobs that wait for a person."
)
WEBHOOKS_WAITING = Metric(
    "gw_webhooks_waiting", "gauge", "Webhooks that have not been told everything yet."
)
WEBHOOKS_DEAD = Metric("gw_webhooks_dlq_depth", "gauge", "Webhook deliveries that were given up.")
IMAGES_INFLIGHT = Metric(
    "gw_images_inflight", "gauge", "Images that were uploaded and have not ended."
)
IMAGE_RESULTS_LAG = Metric(
    "gw_image_results_lag", "gauge", "Results of images that no gateway was given yet."
)
IMAGE_RESULTS_PENDING = Metric(
    "gw_image_results_pending",
    "gauge",
    "Results of images that a gateway was given and has not put into the record.",
)
IMAGE_RESULTS_DEAD = Metric(
    "gw_image_results_dlq_depth", "gauge", "Results of images that nobody could make sense of."
)
REDIS_RTT = Metric("gw_redis_rtt_seconds", "gauge", "How long Redis took for this scrape.")
REDIS_MEMORY = Metric(
    "gw_redis_memory_ratio",
    "gauge",
    "Memory that Redis uses, of maxmemory or else of the machine's.",
)
CLOCK_SKEW = Metric(
    "gw_clock_skew_seconds", "gauge", "How far the clock of Redis is ahead of this gateway's."
)
AUDIT_JOBS = Metric("gw_audit_jobs_checked_total", "counter", "Jobs looked at, over all audits.")
AUDIT_VIOLATIONS = Metric(
    "gw_audit_violations_total",
    "counter",
    "Broken promises found, over all audits; one that lasts counts in each.",
)
AUDIT_LAST_VIOLATIONS = Metric(
    "gw_audit_last_violations", "gauge", "Broken promises that the last audit found."
)
AUDIT_LAST_TIME = Metric(
    "gw_audit_last_timestamp_seconds",
    "gauge",
    "When the last audit began; 0 where there was none.",
)
AUDIT_LAST_DURATION = Metric(
    "gw_audit_last_duration_seconds", "gauge", "How long the last audit took."
)


def add_redis(families: MetricFamilies, facts: RedisFacts) -> None:
    """The queue, the schedule, dead letters, audits, and Redis itself."""
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
    "gw_task_limit_places", "gauge", "Jobs of these tasks that may run at once.", ("limit",)
)
LIMIT_RUNNING = Metric(
    "gw_task_limit_running", "gauge", "Jobs of these tasks that run.", ("limit",)
)
TASK_WAITING = Metric(
    "gw_task_waiting", "gauge", "Messages that were read and wait for a place.", (TASK,)
)
TASK_WAITING_AGE = Metric(
    "gw_task_waiting_oldest_age_seconds",
    "gauge",
    "How long the oldest of them has waited.",
    (TASK,),
)
WORKER_CLOSED = Metric(
    "gw_worker_task_closed",
    "gauge",
    "1 where the task may not begin there just now.",
    (WORKER, TASK),
)


def add_limits(families: MetricFamilies, facts: RedisFacts) -> None:
    """Places that tasks share across workers, and what waits for one."""
    for limit in facts.limits:
        families.add(LIMIT_PLACES, limit.places, limit.name)
        families.add(LIMIT_RUNNING, limit.running, limit.name)
    for task, waiting in facts.waiting.items():
        families.add(TASK_WAITING, waiting.number, task)
        families.add(TASK_WAITING_AGE, facts.age_s(waiting.oldest_ms), task)
    for beat in facts.workers:
        for task in beat.limits.closed:
            families.add(WORKER_CLOSED, 1, beat.consumer, task)

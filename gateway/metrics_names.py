"""Every number that `/metrics` may show: name, kind, labels and meaning. The docs print this."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from common.contracts.jobs import JobField
from common.contracts.workers import Count, Spread

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One family of numbers."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


TASK, WORKER, HOST = JobField.TASK.value, "worker", "host"

# -- this process ------------------------------------------------------------------------------
UP = Metric("gw_up", "gauge", "Whether Redis answers this gateway.")
BUILD_INFO = Metric("gw_build_info", "gauge", "Always 1; what runs.", ("version", "python"))
START_TIME = Metric(
    "gw_process_start_time_seconds", "gauge", "When this gateway began, Unix seconds."
)
RSS = Metric("gw_process_resident_memory_bytes", "gauge", "Memory that this gateway takes.")
OPEN_FDS = Metric("gw_process_open_fds", "gauge", "Files and connections it has open.")
CPU = Metric("gw_process_cpu_seconds_total", "counter", "Processor time it has used.")
LOOP_LAG = Metric(
    "gw_event_loop_lag_seconds",
    "gauge",
    "How late its event loop was at worst in the last 15 seconds.",
)

# -- HTTP --------------------------------------------------------------------------------------
HTTP_REQUESTS = Metric(
    "gw_http_requests_total",
    "counter",
    "Requests answered, by route template and status code.",
    ("route", "method", "code"),
)
HTTP_DURATION = Metric(
    "gw_http_request_duration_seconds",
    "histogram",
    "Time from a request's headers to the first byte of its answer.",
    ("route", "method"),
)
HTTP_IN_FLIGHT = Metric("gw_http_in_flight", "gauge", "Requests and streams under way.")
HTTP_REJECTED = Metric(
    "gw_http_rejected_total", "counter", "Requests turned away, by reason.", ("reason",)
)

# -- jobs, as gateways see them ----------------------------------------------------------------
SUBMITTED = Metric(
    "gw_jobs_submitted_total", "counter", "Jobs that this gateway accepted.", (TASK,)
)
DEDUPLICATED = Metric(
    "gw_jobs_deduplicated_total",
    "counter",
    "Requests that an Idempotency-Key tied to an earlier job.",
    (TASK,),
)
FINISHED = Metric("gw_jobs_finished_total", "counter", "Jobs that have ended, on all workers.")
LOST = Metric(
    "gw_jobs_lost_total",
    "counter",
    "Jobs that audits found unfinished with nobody to finish them. Must stay 0.",
)

# -- the queue ---------------------------------------------------------------------------------
QUEUE_DEPTH = Metric("gw_queue_depth", "gauge", "Messages that no worker was given yet.")
QUEUE_PENDING = Metric(
    "gw_queue_pending", "gauge", "Messages that were given to workers and have not ended."
)
QUEUE_LIMIT = Metric(
    "gw_queue_backlog_limit", "gauge", "Depth plus pending from which on a POST gets 429."
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
DRAIN_RATE = Metric("gw_queue_drain_rate", "gauge", "Jobs that end per second, smoothed.")
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
PRESSURE = Metric(
    "gw_pressure_state",
    "gauge",
    "How new jobs fare: 0 accepted, 1 accepted to wait (memory or heat), 2 refused.",
)

# -- Redis -------------------------------------------------------------------------------------
REDIS_RTT = Metric("gw_redis_rtt_seconds", "gauge", "How long Redis took for this scrape.")
REDIS_MEMORY = Metric(
    "gw_redis_memory_ratio",
    "gauge",
    "Memory that Redis uses, of maxmemory or else of the machine's.",
)
REDIS_POOL = Metric("gw_redis_pool_in_use", "gauge", "Connections for reads that are in use.")
CLOCK_SKEW = Metric(
    "gw_clock_skew_seconds", "gauge", "How far the clock of Redis is ahead of this gateway's."
)

# -- event streams -----------------------------------------------------------------------------
SSE_CLIENTS = Metric("gw_sse_clients", "gauge", "Event streams open in this process.")
SSE_EVENTS = Metric("gw_sse_events_total", "counter", "Events written to clients.")
SSE_BYTES = Metric("gw_sse_bytes_total", "counter", "Bytes written to clients.")
SSE_RESUMES = Metric("gw_sse_resumes_total", "counter", "Streams that went on after an event.")
SSE_GAPS = Metric("gw_sse_gap_total", "counter", "Gaps told of, where events were trimmed.")
SSE_SLOW = Metric(
    "gw_sse_slow_total", "counter", "Times that a slow client was sent back to stored events."
)
SSE_SLOW_CLOSED = Metric(
    "gw_sse_slow_closed_total",
    "counter",
    "Streams and connections closed because the client read nothing.",
)
SSE_LAG = Metric(
    "gw_sse_lag_seconds", "histogram", "Time from a live event's writing to its sending."
)

# -- images, as this gateway sees them ---------------------------------------------------------
IMAGE_UPLOADS = Metric(
    "gw_image_uploads_total", "counter", "Uploads of images, by how they fared.", ("outcome",)
)
IMAGE_UPLOAD_BYTES = Metric(
    "gw_image_upload_bytes_total", "counter", "Bytes of uploads that came, whole or not."
)
IMAGE_RESULTS = Metric(
    "gw_image_results_total",
    "counter",
    "Results of images that this gateway was given, by what became of them.",
    ("outcome",),
)
IMAGE_SSE_CLIENTS = Metric(
    "gw_image_sse_clients", "gauge", "Event streams of images, of those open in this process."
)

# -- BullMQ's queues ---------------------------------------------------------------------------
BULLMQ_JOBS = Metric(
    "gw_bullmq_jobs_total",
    "counter",
    "Requests to add a job to a queue of BullMQ, by what became of them.",
    ("queue", "outcome"),
)
BULLMQ_DEPTH = Metric(
    "gw_bullmq_queue_jobs",
    "gauge",
    "Jobs in a queue of BullMQ that this gateway feeds, by where they are.",
    ("queue", "state"),
)
BULLMQ_SSE_CLIENTS = Metric(
    "gw_bullmq_sse_clients",
    "gauge",
    "Event streams of BullMQ's queues and jobs, of those open in this process.",
)

# -- audits ------------------------------------------------------------------------------------
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

# -- workers, from their heartbeats --------------------------------------------------------------
WORKERS = Metric("gw_workers", "gauge", "Workers that live.")
WORKER_UP = Metric("gw_worker_up", "gauge", "1 for each worker that lives.", (WORKER,))
WORKER_BUSY = Metric("gw_worker_busy", "gauge", "Jobs that it runs.", (WORKER,))
WORKER_SLOTS = Metric("gw_worker_slots", "gauge", "Most jobs that it runs at once.", (WORKER,))
WORKER_DEFERRED = Metric(
    "gw_worker_deferred", "gauge", "Messages of its own that may not run yet.", (WORKER,)
)
WORKER_DRAINING = Metric("gw_worker_draining", "gauge", "Whether it is stopping.", (WORKER,))
WORKER_HOLDING = Metric(
    "gw_worker_holding", "gauge", "Whether memory or heat keep it from taking jobs.", (WORKER,)
)
WORKER_AGE = Metric(
    "gw_worker_heartbeat_age_seconds", "gauge", "Since its last sign of life.", (WORKER,)
)
WORKER_START = Metric(
    "gw_worker_start_time_seconds", "gauge", "When it began, Unix seconds.", (WORKER,)
)
WORKER_LAG = Metric(
    "gw_worker_event_loop_lag_seconds", "gauge", "How late its loop was at worst.", (WORKER,)
)
WORKER_RSS = Metric("gw_worker_resident_memory_bytes", "gauge", "Memory it takes.", (WORKER,))
WORKER_FDS = Metric("gw_worker_open_fds", "gauge", "Files it has open.", (WORKER,))
WORKER_CPU = Metric("gw_worker_cpu_seconds_total", "counter", "Its processor time.", (WORKER,))
WORKER_EVENTS = Metric(
    "gw_events_emitted_total", "counter", "Events that its handlers emitted.", (WORKER,)
)

_COUNTED = {
    Count.STARTED: "Attempts that began.",
    Count.SUCCEEDED: "Jobs that ended well.",
    Count.FAILED: "Jobs that ended in error.",
    Count.CANCELED: "Jobs that were canceled while a worker had them.",
    Count.EXPIRED: "Jobs whose time to live was over before they began.",
    Count.RETRIED: "Attempts that failed and are followed by another.",
    Count.POSTPONED: "Attempts that could not be done just now; they do not count.",
    Count.DEADLETTERED: "Jobs and messages put aside as dead letters.",
    Count.RELEASED: "Attempts handed back by a worker that stopped.",
    Count.RECLAIMED: "Messages taken over from workers that fell silent.",
}
JOB_COUNTS: Final = {
    count: Metric(f"gw_jobs_{count.value}_total", "counter", meaning, (TASK, WORKER))
    for count, meaning in _COUNTED.items()
}
JOB_SPREADS: Final = {
    Spread.QUEUE_WAIT: Metric(
        "gw_job_queue_wait_seconds",
        "histogram",
        "Time on the queue before the first attempt; a wished-for delay does not count.",
        (TASK, WORKER),
    ),
    Spread.RUN: Metric(
        "gw_job_run_seconds", "histogram", "How long an attempt's handler ran.", (TASK, WORKER)
    ),
    Spread.END_TO_END: Metric(
        "gw_job_e2e_seconds", "histogram", "Time from the queue to the end.", (TASK, WORKER)
    ),
    Spread.ATTEMPTS: Metric(
        "gw_job_attempts", "histogram", "Attempts that a job had when it ended.", (TASK, WORKER)
    ),
}

# -- the model servers that workers ask ----------------------------------------------------------
MODEL_UP = Metric(
    "gw_model_up", "gauge", "Whether its model server can serve; while not, jobs wait.", (WORKER,)
)
MODEL_SLOTS = Metric(
    "gw_model_slots", "gauge", "Answers that its model server makes at once.", (WORKER,)
)
MODEL_BUSY = Metric("gw_model_busy", "gauge", "Answers that are made for it now.", (WORKER,))
MODEL_ANSWERS = Metric("gw_model_answers_total", "counter", "Answers it was given.", (WORKER,))
MODEL_FAILURES = Metric(
    "gw_model_failures_total",
    "counter",
    "Requests that its model server failed at: errors, garbage, silence.",
    (WORKER,),
)
MODEL_TOKENS = Metric(
    "gw_model_tokens_total", "counter", "Tokens read and written for it.", (WORKER, "kind")
)
MODEL_FIRST_TOKEN = Metric(
    "gw_model_first_token_seconds", "histogram", "Time until an answer began.", (WORKER,)
)

# -- the webhooks that workers deliver ------------------------------------------------------------
WEBHOOKS = Metric(
    "gw_webhooks_total",
    "counter",
    "Attempts to deliver webhooks: `delivered`, `retried` later, or `failed` and given up.",
    (WORKER, "outcome"),
)

# -- limits of tasks ---------------------------------------------------------------------------
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

# -- the machines that workers run on ----------------------------------------------------------
MEMORY_PRESSURE = Metric(
    "gw_mem_pressure_full_avg10",
    "gauge",
    "Percent of time in which every task stood still for want of memory.",
    (HOST,),
)
MEMORY_AVAILABLE = Metric(
    "gw_mem_available_bytes", "gauge", "Memory that is still to be had.", (HOST,)
)
TEMPERATURE = Metric("gw_temperature_celsius", "gauge", "The hottest sensor.", (HOST, "sensor"))
GPU_LOAD = Metric("gw_gpu_load_ratio", "gauge", "How busy the GPU is, from 0 to 1.", (HOST,))
POWER_MODE = Metric("gw_power_mode_info", "gauge", "Always 1; the power mode.", (HOST, "mode"))

METRICS: Final[tuple[Metric, ...]] = tuple(
    value
    for found in (list(globals().values()), JOB_COUNTS.values(), JOB_SPREADS.values())
    for value in found
    if isinstance(value, Metric)
)

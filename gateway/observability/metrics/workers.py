"""Metrics from worker heartbeats: definitions, and the functions that fill them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sluice.common.contracts.workers import (
    FIRST_TOKEN_BOUNDS,
    HISTOGRAM_BOUNDS,
    ModelState,
    TaskCounter,
    TaskHistogram,
)
from sluice.common.observability.heartbeats import WEBHOOK_OUTCOMES, Heartbeat
from sluice.gateway.observability.metrics.families import TASK, WORKER, Metric, MetricFamilies

HOST: Final = "host"

WORKERS = Metric("gw_workers", "gauge", "Live workers.")


def add_workers(families: MetricFamilies, workers: Sequence[Heartbeat]) -> None:
    """Add the metrics of all live workers."""
    families.add(WORKERS, len(workers))
    for beat in workers:
        _add_worker(families, beat)
        _add_job_counts(families, beat)
        _add_model(families, beat)
        _add_webhooks(families, beat)
    for beat in _last_of_each_host(workers):
        _add_host(families, beat)


def _last_of_each_host(workers: Iterable[Heartbeat]) -> Iterable[Heartbeat]:
    by_host = {beat.host: beat for beat in sorted(workers, key=lambda beat: beat.seen_ms)}
    return by_host.values()


WORKER_UP = Metric("gw_worker_up", "gauge", "1 for each live worker.", (WORKER,))
WORKER_BUSY = Metric("gw_worker_busy", "gauge", "Jobs that the worker runs.", (WORKER,))
WORKER_SLOTS = Metric(
    "gw_worker_slots", "gauge", "Jobs that the worker can run at once.", (WORKER,)
)
WORKER_DEFERRED = Metric(
    "gw_worker_deferred", "gauge", "Messages of the worker that may not run yet.", (WORKER,)
)
WORKER_DRAINING = Metric(
    "gw_worker_draining", "gauge", "1 while the worker is stopping.", (WORKER,)
)
WORKER_HOLDING = Metric(
    "gw_worker_holding",
    "gauge",
    "1 while the worker takes no jobs because of memory pressure or temperature.",
    (WORKER,),
)
WORKER_AGE = Metric(
    "gw_worker_heartbeat_age_seconds", "gauge", "Seconds since the last heartbeat.", (WORKER,)
)
WORKER_START = Metric(
    "gw_worker_start_time_seconds", "gauge", "Start time of the worker, Unix seconds.", (WORKER,)
)
WORKER_LAG = Metric(
    "gw_worker_event_loop_lag_seconds", "gauge", "Worst recent event loop lag.", (WORKER,)
)
WORKER_RSS = Metric(
    "gw_worker_resident_memory_bytes", "gauge", "Resident memory of the worker.", (WORKER,)
)
WORKER_FDS = Metric("gw_worker_open_fds", "gauge", "Open file descriptors.", (WORKER,))
WORKER_CPU = Metric("gw_worker_cpu_seconds_total", "counter", "CPU time used.", (WORKER,))
WORKER_EVENTS = Metric(
    "gw_events_emitted_total", "counter", "Events emitted by handlers of the worker.", (WORKER,)
)


def _add_worker(families: MetricFamilies, beat: Heartbeat) -> None:
    for metric, value in (
        (WORKER_UP, 1),
        (WORKER_BUSY, beat.in_flight),
        (WORKER_SLOTS, beat.max_inflight),
        (WORKER_DEFERRED, beat.deferred),
        (WORKER_DRAINING, int(beat.draining)),
        (WORKER_HOLDING, int(beat.under_pressure)),
        (WORKER_AGE, beat.age_s()),
        (WORKER_START, beat.started_ms / 1000),
        (WORKER_LAG, beat.loop_lag_s),
        (WORKER_RSS, beat.rss_bytes),
        (WORKER_FDS, beat.open_fds),
        (WORKER_CPU, beat.cpu_s),
        (WORKER_EVENTS, beat.events),
    ):
        families.add(metric, value, beat.consumer)


_COUNTED = {
    TaskCounter.STARTED: "Attempts started.",
    TaskCounter.SUCCEEDED: "Jobs finished successfully.",
    TaskCounter.FAILED: "Jobs finished with an error.",
    TaskCounter.CANCELED: "Jobs canceled while a worker had them.",
    TaskCounter.EXPIRED: "Jobs that expired before they started.",
    TaskCounter.RETRIED: "Failed attempts that are retried.",
    TaskCounter.POSTPONED: "Attempts postponed by the handler; they do not count as attempts.",
    TaskCounter.DEADLETTERED: "Jobs and messages that were dead-lettered.",
    TaskCounter.RELEASED: "Attempts released by a worker that stopped.",
    TaskCounter.RECLAIMED: "Messages reclaimed from workers whose lease expired.",
}
JOB_COUNTS: Final = {
    count: Metric(f"gw_jobs_{count.value}_total", "counter", meaning, (TASK, WORKER))
    for count, meaning in _COUNTED.items()
}
JOB_SPREADS: Final = {
    TaskHistogram.QUEUE_WAIT: Metric(
        "gw_job_queue_wait_seconds",
        "histogram",
        "Time in the queue before the first attempt, without a requested delay.",
        (TASK, WORKER),
    ),
    TaskHistogram.RUN: Metric(
        "gw_job_run_seconds", "histogram", "Run time of the handler, per attempt.", (TASK, WORKER)
    ),
    TaskHistogram.END_TO_END: Metric(
        "gw_job_e2e_seconds",
        "histogram",
        "Time from queueing a job to its end.",
        (TASK, WORKER),
    ),
    TaskHistogram.ATTEMPTS: Metric(
        "gw_job_attempts", "histogram", "Attempts of finished jobs.", (TASK, WORKER)
    ),
}


def _add_job_counts(families: MetricFamilies, beat: Heartbeat) -> None:
    for task, numbers in beat.task_numbers.items():
        for count, metric in JOB_COUNTS.items():
            families.add(metric, numbers.count(count), task, beat.consumer)
        for spread, metric in JOB_SPREADS.items():
            histogram = numbers.histogram(spread)
            if histogram is not None:
                families.add_histogram(
                    metric,
                    HISTOGRAM_BOUNDS[spread],
                    histogram.counts,
                    histogram.sum,
                    task,
                    beat.consumer,
                )


MODEL_UP = Metric(
    "gw_model_up",
    "gauge",
    "1 if the worker's model server is ready; otherwise jobs that need it wait.",
    (WORKER,),
)
MODEL_SLOTS = Metric(
    "gw_model_slots", "gauge", "Requests that the model server handles at once.", (WORKER,)
)
MODEL_BUSY = Metric("gw_model_busy", "gauge", "Model requests in progress.", (WORKER,))
MODEL_ANSWERS = Metric(
    "gw_model_answers_total", "counter", "Responses received from the model server.", (WORKER,)
)
MODEL_FAILURES = Metric(
    "gw_model_failures_total",
    "counter",
    "Failed model requests: errors, invalid responses and timeouts.",
    (WORKER,),
)
MODEL_TOKENS = Metric(
    "gw_model_tokens_total", "counter", "Prompt and completion tokens.", (WORKER, "kind")
)
MODEL_FIRST_TOKEN = Metric(
    "gw_model_first_token_seconds", "histogram", "Time to the first token.", (WORKER,)
)


def _add_model(families: MetricFamilies, beat: Heartbeat) -> None:
    model = beat.model
    if model is None or model.state is ModelState.ABSENT:
        return
    for metric, value in (
        (MODEL_UP, int(model.state is ModelState.READY)),
        (MODEL_SLOTS, model.slots),
        (MODEL_BUSY, model.busy),
        (MODEL_ANSWERS, model.answers),
        (MODEL_FAILURES, model.failures),
    ):
        families.add(metric, value, beat.consumer)
    families.add(MODEL_TOKENS, model.prompt_tokens, beat.consumer, "prompt")
    families.add(MODEL_TOKENS, model.completion_tokens, beat.consumer, "completion")
    spread = model.first_token_histogram
    if spread is not None:
        families.add_histogram(
            MODEL_FIRST_TOKEN, FIRST_TOKEN_BOUNDS, spread.counts, spread.sum, beat.consumer
        )


WEBHOOKS = Metric(
    "gw_webhooks_total",
    "counter",
    "Webhook delivery attempts: `delivered`, `retried`, or `failed` after all attempts.",
    (WORKER, "outcome"),
)


def _add_webhooks(families: MetricFamilies, beat: Heartbeat) -> None:
    webhooks = beat.webhooks
    if webhooks is not None:
        for outcome in WEBHOOK_OUTCOMES:
            families.add(WEBHOOKS, getattr(webhooks, outcome), beat.consumer, outcome)


MEMORY_PRESSURE = Metric(
    "gw_mem_pressure_full_avg10",
    "gauge",
    "Memory pressure (PSI `full avg10`), percent.",
    (HOST,),
)
MEMORY_AVAILABLE = Metric("gw_mem_available_bytes", "gauge", "Available memory.", (HOST,))
TEMPERATURE = Metric(
    "gw_temperature_celsius", "gauge", "Temperature of the hottest sensor.", (HOST, "sensor")
)
GPU_LOAD = Metric("gw_gpu_load_ratio", "gauge", "GPU load, from 0 to 1.", (HOST,))
POWER_MODE = Metric(
    "gw_power_mode_info", "gauge", "Always 1; the label is the power mode.", (HOST, "mode")
)


def _add_host(families: MetricFamilies, beat: Heartbeat) -> None:
    host = beat.box
    families.add(MEMORY_PRESSURE, host.memory_pressure, beat.host)
    families.add(MEMORY_AVAILABLE, host.available_bytes, beat.host)
    families.add(TEMPERATURE, host.temperature_c, beat.host, host.hottest or "")
    families.add(GPU_LOAD, host.gpu_load, beat.host)
    if host.power_mode is not None:
        families.add(POWER_MODE, 1, beat.host, host.power_mode)

"""Numbers from the heartbeats of workers: definitions, and the functions that fill them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from common.contracts.workers import (
    FIRST_TOKEN_BOUNDS,
    HISTOGRAM_BOUNDS,
    ModelState,
    TaskCounter,
    TaskHistogram,
)
from common.observability.heartbeats import WEBHOOK_OUTCOMES, Heartbeat
from gateway.observability.metrics.families import TASK, WORKER, Metric, MetricFamilies

HOST: Final = "host"

WORKERS = Metric("gw_workers", "gauge", "Workers that live.")


def add_workers(families: MetricFamilies, workers: Sequence[Heartbeat]) -> None:
    """Every worker that lives; of one that does not, nothing is left."""
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
    TaskCounter.STARTED: "Attempts that began.",
    TaskCounter.SUCCEEDED: "Jobs that ended well.",
    TaskCounter.FAILED: "Jobs that ended in error.",
    TaskCounter.CANCELED: "Jobs that were canceled while a worker had them.",
    TaskCounter.EXPIRED: "Jobs whose time to live was over before they began.",
    TaskCounter.RETRIED: "Attempts that failed and are followed by another.",
    TaskCounter.POSTPONED: "Attempts that could not be done just now; they do not count.",
    TaskCounter.DEADLETTERED: "Jobs and messages put aside as dead letters.",
    TaskCounter.RELEASED: "Attempts handed back by a worker that stopped.",
    TaskCounter.RECLAIMED: "Messages taken over from workers that fell silent.",
}
JOB_COUNTS: Final = {
    count: Metric(f"gw_jobs_{count.value}_total", "counter", meaning, (TASK, WORKER))
    for count, meaning in _COUNTED.items()
}
JOB_SPREADS: Final = {
    TaskHistogram.QUEUE_WAIT: Metric(
        "gw_job_queue_wait_seconds",
        "histogram",
        "Time on the queue before the first attempt; a wished-for delay does not count.",
        (TASK, WORKER),
    ),
    TaskHistogram.RUN: Metric(
        "gw_job_run_seconds", "histogram", "How long an attempt's handler ran.", (TASK, WORKER)
    ),
    TaskHistogram.END_TO_END: Metric(
        "gw_job_e2e_seconds", "histogram", "Time from the queue to the end.", (TASK, WORKER)
    ),
    TaskHistogram.ATTEMPTS: Metric(
        "gw_job_attempts", "histogram", "Attempts that a job had when it ended.", (TASK, WORKER)
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
    "Attempts to deliver webhooks: `delivered`, `retried` later, or `failed` and given up.",
    (WORKER, "outcome"),
)


def _add_webhooks(families: MetricFamilies, beat: Heartbeat) -> None:
    told = beat.webhooks
    if told is not None:
        for outcome in WEBHOOK_OUTCOMES:
            families.add(WEBHOOKS, getattr(told, outcome), beat.consumer, outcome)


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


def _add_host(families: MetricFamilies, beat: Heartbeat) -> None:
    box = beat.box
    families.add(MEMORY_PRESSURE, box.memory_pressure, beat.host)
    families.add(MEMORY_AVAILABLE, box.available_bytes, beat.host)
    families.add(TEMPERATURE, box.temperature_c, beat.host, box.hottest or "")
    families.add(GPU_LOAD, box.gpu_load, beat.host)
    if box.power_mode is not None:
        families.add(POWER_MODE, 1, beat.host, box.power_mode)

"""Response models of `GET /v1/stats`."""

from __future__ import annotations

from pydantic import BaseModel, Field, create_model

from sluice.common.contracts.stats import StatsColumn
from sluice.gateway.observability.history.samples import Range

_MEANINGS: dict[StatsColumn, str] = {
    StatsColumn.ACCEPTED: "Jobs accepted in the interval.",
    StatsColumn.DONE: "Jobs finished successfully in the interval.",
    StatsColumn.ERROR: "Jobs finished with an error in the interval.",
    StatsColumn.CANCELED: "Jobs canceled in the interval.",
    StatsColumn.DEPTH: "Messages not yet delivered to a worker.",
    StatsColumn.PENDING: "Messages delivered to workers and not yet finished.",
    StatsColumn.SCHEDULED: "Scheduled jobs that are not due yet.",
    StatsColumn.DEAD_LETTERS: "Dead letters.",
    StatsColumn.OLDEST_AGE_MS: "Waiting time of the oldest message, in milliseconds.",
    StatsColumn.WORKERS: "Live workers.",
    StatsColumn.RUNNING: "Running jobs.",
    StatsColumn.SLOTS: "Jobs that can run at once.",
    StatsColumn.GATEWAYS: "Live gateways.",
    StatsColumn.SSE_CLIENTS: "Open event streams of all gateways.",
    StatsColumn.WORKERS_RSS_BYTES: "Resident memory of all workers.",
    StatsColumn.AVAILABLE_BYTES: "Lowest available memory of any machine.",
    StatsColumn.TEMPERATURE_C: "Highest temperature of any machine.",
    StatsColumn.GPU_LOAD: "Highest GPU load, from 0 to 1.",
    StatsColumn.LOOP_LAG_MS: "Highest recent event loop lag, in milliseconds.",
    StatsColumn.PROMPT_TOKENS_PER_S: "Prompt tokens per second.",
    StatsColumn.COMPLETION_TOKENS_PER_S: "Completion tokens per second.",
    StatsColumn.E2E_P50_MS: "Time from queueing a job to its end, median.",
    StatsColumn.E2E_P95_MS: "Time from queueing a job to its end, 95th percentile.",
    StatsColumn.E2E_P99_MS: "Time from queueing a job to its end, 99th percentile.",
    StatsColumn.QUEUE_WAIT_P50_MS: "Time in the queue before the first attempt, median.",
    StatsColumn.QUEUE_WAIT_P95_MS: "Time in the queue before the first attempt, 95th percentile.",
    StatsColumn.QUEUE_WAIT_P99_MS: "Time in the queue before the first attempt, 99th percentile.",
}

#: One point; null for unknown values.
StatsPoint: type[BaseModel] = create_model(
    "StatsPoint",
    __doc__="Counts of one interval and values at its end; null for unknown values.",
    ts=(int | None, Field(description="Start of the interval in Unix milliseconds.")),
    **{
        column.value: (float | None, Field(description=meaning))
        for column, meaning in _MEANINGS.items()
    },
)  # type: ignore[call-overload]


class StatsTotals(BaseModel):
    """Number of jobs since the queue was first used."""

    accepted: int | None
    done: int | None
    error: int | None
    canceled: int | None


class StatsNow(StatsPoint):
    """The newest second. Percentiles and token rates cover the last ten seconds."""

    totals: StatsTotals


class StatsView(BaseModel):
    """Statistics over a range, and their newest values."""

    now: StatsNow
    range: Range
    resolution_s: int = Field(description="Interval of a row in seconds.")
    since_ms: int = Field(description="Start of the range in Unix milliseconds.")
    until_ms: int = Field(description="End of the range (now) in Unix milliseconds.")
    series: dict[str, list[float | None]] = Field(
        description="`ts`, the start of each row's interval in Unix milliseconds, and a list of "
        "the same length for each column. The first row is the oldest known one in the range."
    )

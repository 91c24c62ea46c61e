"""What `GET /v1/stats` answers."""

from __future__ import annotations

from pydantic import BaseModel, Field, create_model

from common.contracts.stats import StatsColumn
from gateway.observability.history.samples import Range

_MEANINGS: dict[StatsColumn, str] = {
    StatsColumn.ACCEPTED: "Jobs accepted within the point's time.",
    StatsColumn.DONE: "Jobs that ended well within it.",
    StatsColumn.ERROR: "Jobs that ended in error within it.",
    StatsColumn.CANCELED: "Jobs that were canceled within it.",
    StatsColumn.DEPTH: "Messages that no worker was given yet.",
    StatsColumn.PENDING: "Messages that workers have.",
    StatsColumn.SCHEDULED: "Jobs that wait for their time.",
    StatsColumn.DEAD_LETTERS: "Dead letters.",
    StatsColumn.OLDEST_AGE_MS: "How long the oldest message has waited, milliseconds.",
    StatsColumn.WORKERS: "Workers that live.",
    StatsColumn.RUNNING: "Jobs that run.",
    StatsColumn.SLOTS: "Jobs that could run at once.",
    StatsColumn.GATEWAYS: "Gateways that live.",
    StatsColumn.SSE_CLIENTS: "Open event streams, of all gateways.",
    StatsColumn.WORKERS_RSS_BYTES: "Memory that all workers take.",
    StatsColumn.AVAILABLE_BYTES: "Free memory of the machine that has least.",
    StatsColumn.TEMPERATURE_C: "The hottest sensor of the hottest machine.",
    StatsColumn.GPU_LOAD: "The busiest GPU, from 0 to 1.",
    StatsColumn.LOOP_LAG_MS: "How late the latest event loop was, lately.",
    StatsColumn.PROMPT_TOKENS_PER_S: "Tokens that models read, a second.",
    StatsColumn.COMPLETION_TOKENS_PER_S: "Tokens that models wrote, a second.",
    StatsColumn.E2E_P50_MS: "Time from the queue to the end of a job: half took less.",
    StatsColumn.E2E_P95_MS: "The same: 95 % took less.",
    StatsColumn.E2E_P99_MS: "The same: 99 % took less.",
    StatsColumn.QUEUE_WAIT_P50_MS: "Time on the queue before the first attempt: half waited less.",
    StatsColumn.QUEUE_WAIT_P95_MS: "The same: 95 % waited less.",
    StatsColumn.QUEUE_WAIT_P99_MS: "The same: 99 % waited less.",
}

#: One point; null is what nobody knows.
StatsPoint: type[BaseModel] = create_model(
    "StatsPoint",
    __doc__="How a second went, and how things stood at its end; null is what nobody knows.",
    ts=(int | None, Field(description="When its time began, Unix milliseconds.")),
    **{
        column.value: (float | None, Field(description=meaning))
        for column, meaning in _MEANINGS.items()
    },
)  # type: ignore[call-overload]


class StatsTotals(BaseModel):
    """All jobs since the queue was first used."""

    accepted: int | None
    done: int | None
    error: int | None
    canceled: int | None


class StatsNow(StatsPoint):
    """The newest second; its times and tokens are those of the last ten."""

    totals: StatsTotals


class StatsView(BaseModel):
    """How things went."""

    now: StatsNow
    range: Range
    resolution_s: int = Field(description="Seconds that a row stands for.")
    since_ms: int = Field(description="Where the range begins, Unix milliseconds.")
    until_ms: int = Field(description="Now, Unix milliseconds.")
    series: dict[str, list[float | None]] = Field(
        description="`ts`, when each row's time began in Unix milliseconds, and a list of the same "
        "length for each column. The first row is the first that is known."
    )

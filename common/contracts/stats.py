"""Time series of statistics: rings of samples in Redis, and their fields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple


class StatsField(str, Enum):
    """Fields of a sample, present in every entry in this order, which Redis stores most compactly.
    An empty value is unknown."""

    #: Number of jobs within the sample's interval.
    ACCEPTED = "accepted"
    DONE = "done"
    ERROR = "error"
    CANCELED = "canceled"
    #: The underlying counters at its end; the next sampler continues from them.
    ACCEPTED_TOTAL = "accepted_total"
    DONE_TOTAL = "done_total"
    ERROR_TOTAL = "error_total"
    CANCELED_TOTAL = "canceled_total"
    #: State at its end.
    DEPTH = "depth"
    PENDING = "pending"
    SCHEDULED = "scheduled"
    DEAD_LETTERS = "dead_letters"
    OLDEST_AGE_MS = "oldest_age_ms"
    WORKERS = "workers"
    RUNNING = "running"
    SLOTS = "slots"
    GATEWAYS = "gateways"
    SSE_CLIENTS = "sse_clients"
    WORKERS_RSS_BYTES = "workers_rss_bytes"
    AVAILABLE_BYTES = "available_bytes"
    TEMPERATURE_C = "temperature_c"
    GPU_LOAD = "gpu_load"
    LOOP_LAG_MS = "loop_lag_ms"
    #: Tokens that workers reported within its interval.
    PROMPT_TOKENS = "prompt_tokens"
    COMPLETION_TOKENS = "completion_tokens"
    #: Histograms of values that workers reported, as `bucket:count`, comma-separated. The buckets
    #: are those of the heartbeats, by number.
    END_TO_END = "end_to_end"
    QUEUE_WAIT = "queue_wait"


#: Fields that are histograms.
HISTOGRAM_FIELDS: Final = (StatsField.END_TO_END, StatsField.QUEUE_WAIT)
#: Counters up to the end of a sample's interval.
TOTAL_FIELDS: Final = (
    *(StatsField.ACCEPTED_TOTAL, StatsField.DONE_TOTAL),
    *(StatsField.ERROR_TOTAL, StatsField.CANCELED_TOTAL),
)
#: Fields that are summed over time.
COUNT_FIELDS: Final = (
    *(StatsField.ACCEPTED, StatsField.DONE, StatsField.ERROR, StatsField.CANCELED),
    *(StatsField.PROMPT_TOKENS, StatsField.COMPLETION_TOKENS),
)


class StatsColumn(str, Enum):
    """Columns of `GET /v1/stats`, and members of a `stats` event."""

    ACCEPTED = "accepted"
    DONE = "done"
    ERROR = "error"
    CANCELED = "canceled"
    DEPTH = "depth"
    PENDING = "pending"
    SCHEDULED = "scheduled"
    DEAD_LETTERS = "dead_letters"
    OLDEST_AGE_MS = "oldest_age_ms"
    WORKERS = "workers"
    RUNNING = "running"
    SLOTS = "slots"
    GATEWAYS = "gateways"
    SSE_CLIENTS = "sse_clients"
    WORKERS_RSS_BYTES = "workers_rss_bytes"
    AVAILABLE_BYTES = "available_bytes"
    TEMPERATURE_C = "temperature_c"
    GPU_LOAD = "gpu_load"
    LOOP_LAG_MS = "loop_lag_ms"
    PROMPT_TOKENS_PER_S = "prompt_tokens_per_s"
    COMPLETION_TOKENS_PER_S = "completion_tokens_per_s"
    E2E_P50_MS = "e2e_p50_ms"
    E2E_P95_MS = "e2e_p95_ms"
    E2E_P99_MS = "e2e_p99_ms"
    QUEUE_WAIT_P50_MS = "queue_wait_p50_ms"
    QUEUE_WAIT_P95_MS = "queue_wait_p95_ms"
    QUEUE_WAIT_P99_MS = "queue_wait_p99_ms"


#: The additional time column: when each sample begins, Unix milliseconds.
TIME_COLUMN: Final = "ts"


class FeedEvent(str, Enum):
    """Event types of `GET /v1/stream` in addition to those of every stream."""

    #: A second has ended: its sample. The event id is that of the sample.
    STATS = "stats"
    #: Jobs have changed.
    JOBS = "jobs"


class GatewayField:
    """Members of a gateway's heartbeat (JSON)."""

    SEEN_MS: Final = "seen_ms"
    SSE_CLIENTS: Final = "sse_clients"
    LOOP_LAG_MS: Final = "loop_lag_ms"


class Resolution(NamedTuple):
    """A ring: the duration of a sample, and the number of samples kept."""

    name: str
    step_ms: int
    length: int


ONE_SECOND: Final = Resolution("1s", 1000, 600)
TEN_SECONDS: Final = Resolution("10s", 10_000, 2160)
FIVE_MINUTES: Final = Resolution("5m", 300_000, 4032)
#: From the finest; each except the first is computed from the previous one.
RESOLUTIONS: Final = (ONE_SECOND, TEN_SECONDS, FIVE_MINUTES)


@dataclass(frozen=True)
class StatsKeys:
    """Every Redis key of the statistics, derived from the name of the queue."""

    queue: str

    def ring(self, resolution: Resolution) -> str:
        """STREAM, samples; the id is the start of the sample's interval in milliseconds."""
        return f"{self.queue}:stats:{resolution.name}"

    @property
    def sampler_lock(self) -> str:
        """STRING, lock of the gateway that takes the samples; one at a time."""
        return f"{self.queue}:statskeeper"

    @property
    def seen(self) -> str:
        """STRING, the numbers of each worker already included in the samples (JSON)."""
        return f"{self.queue}:stats:seen"

    @property
    def gateways(self) -> str:
        """HASH, heartbeats of gateways (JSON)."""
        return f"{self.queue}:gateways"

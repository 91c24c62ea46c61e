"""What the gateway says of jobs and of itself. `raw` is all of it, newer members too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from client.core.pages import Page
from client.core.raw import everything

DONE, ERROR, CANCELED = "done", "error", "canceled"
#: How a job can end; also the types of its last event.
TERMINAL = (DONE, ERROR, CANCELED)
QUEUED, RUNNING = "queued", "running"
MESSAGE, REASONING, PROGRESS = "message", "reasoning", "progress"
#: Frames of the gateway itself, without an id.
HELLO, GAP, GONE, SHUTDOWN, HEARTBEAT = "hello", "gap", "gone", "shutdown", "heartbeat"


@dataclass(frozen=True)
class Job:
    """A job as it stands. Times are Unix milliseconds."""

    job_id: str
    task: str
    status: str
    created_ts: int
    updated_ts: int
    ttl_s: int
    payload: Any = None
    result: Any = None
    error: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = everything()

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.status in TERMINAL


@dataclass(frozen=True)
class JobSummary:
    """A job in a listing."""

    job_id: str
    task: str
    status: str
    created_ts: int
    updated_ts: int
    ttl_s: int
    error: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class JobPage(Page[JobSummary]):
    """One page of a listing; it may be short, or even empty, and still have a `next`."""

    #: How many jobs the gateway went through for it.
    looked_at: int = 0

    @property
    def jobs(self) -> Sequence[JobSummary]:
        """Those that fit."""
        return self.items


@dataclass(frozen=True)
class Canceled:
    """What came of canceling: how it stands, and whether a worker still has to end it."""

    job_id: str
    status: str
    canceling: bool = False
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class Event:
    """Something that happened to a job. `gap` and `gone` are the gateway's, without an id."""

    id: str
    type: str
    ts: int
    step: str
    data: Any
    raw: Mapping[str, Any] = everything()

    @property
    def terminal(self) -> bool:
        """Whether it is the job's last one."""
        return self.type in TERMINAL

    @property
    def text(self) -> str:
        """The piece of an answer in it; empty for all other events."""
        if self.type != MESSAGE or not isinstance(self.data, dict):
            return ""
        piece = self.data.get("delta", self.data.get("text", ""))
        return piece if isinstance(piece, str) else ""


@dataclass(frozen=True)
class Worker:
    """A live worker's last word."""

    consumer: str
    host: str = ""
    pid: int = 0
    version: str = ""
    started_ms: int = 0
    seen_ms: int = 0
    in_flight: int = 0
    max_inflight: int = 0
    draining: bool = False
    holding: bool = False
    rss_bytes: int | None = None
    tasks: Sequence[str] = ()
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class Status:
    """How all parts are: `pass`, `warn` or `fail`, and why."""

    status: str
    output: str = ""
    checks: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class WhoAmI:
    """Whom the gateway takes us for."""

    name: str
    scopes: Sequence[str]
    key_id: str | None = None
    tenant: str | None = None
    tasks: Sequence[str] | None = None
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class Stats:
    """Numbers over time: `series` has one column a name, all as long as `series["ts"]`."""

    series: Mapping[str, Any]
    now: Mapping[str, Any] = field(default_factory=dict)
    resolution_s: float = 1
    raw: Mapping[str, Any] = everything()

"""Models and requests of the operator API: statistics, queues, workers, dead letters, audits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.api.parsing import (
    Page,
    list_reader,
    model_reader,
    page_reader,
    parse_model,
    parse_models,
    raw_field,
    read_job_id,
    read_nothing,
    read_object,
    require,
)
from sluice.errors import BadAnswer, Broken, Unavailable
from sluice.transport.request import (
    NDJSON,
    Request,
    Response,
    build_request,
    drop_none,
    path_segment,
)

LIVE = "/v1/stream"
#: Maximum seconds between two lines of a running integrity check.
AUDIT_LINE_S = 30.0
_DEAD_LETTERS = "/v1/dlq"


@dataclass(frozen=True)
class Stats:
    """Statistics over time. `series` maps names to columns, all as long as `series["ts"]`."""

    series: Mapping[str, Any]
    now: Mapping[str, Any] = field(default_factory=dict)
    resolution_s: float = 1
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Worker:
    """The last heartbeat of a live worker."""

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
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Tool:
    """A tool that jobs may call; `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    #: `built_in`, `custom` or `mcp`.
    origin: str = ""
    #: Name of the MCP server.
    server: str | None = None
    worker_count: int = 0
    #: Names of the workers that offer it, if the key may read them.
    workers: Sequence[str] | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Status:
    """Health of the system (`pass`, `warn` or `fail`) and of each component."""

    status: str
    output: str = ""
    checks: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class WhoAmI:
    """The authenticated caller: name, scopes, tenant."""

    name: str
    scopes: Sequence[str]
    key_id: str | None = None
    tenant: str | None = None
    tasks: Sequence[str] | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class DeadLetter:
    """A queue message that could not be completed as a job."""

    id: str
    reason: str
    ts: int
    attempts: int
    job_id: str | None = None
    first_error: Any = None
    last_error: Any = None
    fields: Any = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class DeadLetterGroup:
    """Dead letters with the same failure signature."""

    fingerprint: str
    count: int
    reason: str
    task: str | None = None
    kind: str | None = None
    message: str | None = None
    newest_id: str = ""
    newest_ts: int = 0
    oldest_ts: int = 0
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class DeadLetterGroups:
    """All groups. `complete` is False if some dead letters or small groups are not included."""

    groups: Sequence[DeadLetterGroup]
    total: int
    looked_at: int
    complete: bool


@dataclass(frozen=True)
class RedriveResult:
    """The new jobs of a redrive, and the dead letters it skipped with the reason code."""

    redriven: Sequence[Any]
    skipped: Sequence[Any]
    dry_run: bool = False
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Violation:
    """A violation of a rule, found by the integrity check."""

    job_id: str
    rule: str
    detail: str = ""
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class AuditReport:
    """The result of an integrity check. `violations` holds the first 1,000."""

    jobs_checked: int
    violations_total: int
    duration_ms: float
    complete: bool = True
    violations: Sequence[Violation] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class AuditLogEntry:
    """An entry of the audit log (`/v1/trail`): an action with administrative rights."""

    id: str
    ts: int
    who: str
    name: str
    action: str
    target: str
    raw: Mapping[str, Any] = raw_field()


def stats(span: str | None = None, columns: Sequence[str] = ()) -> Request[Stats]:
    """Reads statistics over the last `10m`, `1h`, `6h`, `24h` or `14d`."""
    query = {"range": span, "columns": ",".join(columns) or None}
    return build_request("GET", "/v1/stats", model_reader(Stats), query=query)


def queues() -> Request[dict[str, Any]]:
    """Lists the job queue and the BullMQ queues."""
    return build_request("GET", "/v1/queues", read_object)


def pause(name: str, why: str | None = None) -> Request[dict[str, Any]]:
    """Pauses a queue: running jobs continue, new ones wait."""
    body = None if why is None else {"why": why}
    path = f"/v1/queues/{path_segment(name)}/pause"
    return build_request("POST", path, read_object, body=body, idempotent=True)


def resume(name: str) -> Request[dict[str, Any]]:
    """Resumes a paused queue."""
    path = f"/v1/queues/{path_segment(name)}/resume"
    return build_request("POST", path, read_object, idempotent=True)


def workers() -> Request[list[Worker]]:
    """Lists the live workers."""
    return build_request("GET", "/v1/workers", list_reader(Worker, "workers"))


def tools() -> Request[list[Tool]]:
    """Lists the tools of live workers."""
    return build_request("GET", "/v1/tools", list_reader(Tool, "tools"))


def status() -> Request[Status]:
    """Reads the health status. A 503 response has the same body."""
    request = build_request("GET", "/v1/status", model_reader(Status))
    return replace(request, accepted_statuses=(503,))


def whoami() -> Request[WhoAmI]:
    return build_request("GET", "/v1/whoami", model_reader(WhoAmI))


def trail(limit: int | None = None, before: str | None = None) -> Request[Page[AuditLogEntry]]:
    """Lists the audit log, newest entry first."""
    query = {"limit": limit, "before": before}
    return build_request("GET", "/v1/trail", page_reader(AuditLogEntry), query=query)


def dead_letters(
    reason: str | None = None,
    fingerprint: str | None = None,
    limit: int | None = None,
    before: str | None = None,
) -> Request[Page[DeadLetter]]:
    """Lists dead letters, newest first."""
    query = {"reason": reason, "fingerprint": fingerprint, "limit": limit, "before": before}
    return build_request("GET", _DEAD_LETTERS, page_reader(DeadLetter), query=query)


def dead_letter(dead_letter_id: str) -> Request[DeadLetter]:
    return build_request("GET", _dead_letter_path(dead_letter_id), model_reader(DeadLetter))


def _dead_letter_path(dead_letter_id: str) -> str:
    return f"{_DEAD_LETTERS}/{path_segment(dead_letter_id)}"


def dead_letter_groups() -> Request[DeadLetterGroups]:
    """Groups dead letters by failure signature, largest group first."""
    return build_request("GET", f"{_DEAD_LETTERS}/groups", _read_groups)


def _read_groups(response: Response) -> DeadLetterGroups:
    data = response.json()
    groups = parse_models(DeadLetterGroup, require(data, "groups"))
    total, looked_at = require(data, "total"), require(data, "looked_at")
    if not isinstance(total, int) or not isinstance(looked_at, int):
        raise BadAnswer(
            "unexpected response from the gateway: a count is not a number; check the URL"
        )
    return DeadLetterGroups(groups, total, looked_at, bool(require(data, "complete")))


def redrive(
    ids: Sequence[str] | None = None,
    *,
    reason: str | None = None,
    fingerprint: str | None = None,
    everything: bool = False,
    limit: int | None = None,
    rate_per_s: float | None = None,
    dry_run: bool = False,
) -> Request[RedriveResult]:
    """Re-enqueues dead letters, selected by exactly one of: ids, reason, group, or all."""
    options = {
        "ids": None if ids is None else list(ids),
        "reason": reason,
        "fingerprint": fingerprint,
        "all": everything or None,
        "limit": limit,
        "rate_per_s": rate_per_s,
        "dry_run": dry_run,
    }
    return build_request(
        "POST",
        f"{_DEAD_LETTERS}/redrive",
        model_reader(RedriveResult),
        body=drop_none(options),
        # Repeated with the same ids it returns the same jobs. For a group with more dead letters
        # than `limit`, a repetition would redrive the next ones.
        idempotent=ids is not None or dry_run,
    )


def redrive_one(dead_letter_id: str) -> Request[str]:
    """Re-enqueues one dead letter. The response is the new job's id, the same when repeated."""
    return build_request(
        "POST", f"{_dead_letter_path(dead_letter_id)}/redrive", read_job_id, idempotent=True
    )


def purge(
    dead_letter_id: str | None = None,
    *,
    reason: str | None = None,
    fingerprint: str | None = None,
    everything: bool = False,
) -> Request[int]:
    """Deletes dead letters. The response is their number."""
    if dead_letter_id is not None:
        return build_request("DELETE", _dead_letter_path(dead_letter_id), lambda response: 1)
    query = {"reason": reason, "fingerprint": fingerprint, "all": everything or None}
    return build_request("DELETE", _DEAD_LETTERS, _read_purged, query=query)


def _read_purged(response: Response) -> int:
    number = require(response.json(), "purged")
    return number if isinstance(number, int) else 0


def last_audit() -> Request[dict[str, Any]]:
    """Reads the result of the last integrity check and the totals of all checks."""
    return build_request("GET", "/v1/audit", read_object)


def audit() -> Request[None]:
    """Starts an integrity check. The response streams one JSON object per line."""
    headers = {"Accept": NDJSON}
    return build_request("POST", "/v1/audit", read_nothing, headers=headers, idempotent=True)


class AuditParser:
    """Parses the response lines of an integrity check."""

    def __init__(self) -> None:
        self._violations: list[Violation] = []
        self._report: AuditReport | None = None

    def feed(self, line: bytes) -> dict[str, Any]:
        """Parse one line; raises Unavailable if it reports a failure."""
        try:
            data: dict[str, Any] = json.loads(line)
            kind = data["type"]
        except (ValueError, KeyError, TypeError):
            raise BadAnswer(
                "unexpected response from the gateway: not an audit; check the URL"
            ) from None
        if kind == "violation":
            self._violations.append(parse_model(Violation, data))
        elif kind == "failed":
            detail = str(data.get("detail", ""))
            raise Unavailable(f"the audit failed: {detail}", 503, "audit_failed", detail)
        elif kind == "report":
            report = parse_model(AuditReport, data)
            self._report = replace(report, violations=tuple(self._violations))
        return data

    def report(self) -> AuditReport:
        """The final report; raises Broken if the stream ended without one."""
        if self._report is None:
            raise Broken("the audit ended without a report; try again")
        return self._report

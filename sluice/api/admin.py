"""Operations: statistics, queues, workers, dead letters, integrity checks and the audit log."""

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
#: The gateway sends a line of a running audit at least this often.
AUDIT_LINE_S = 30.0
_DEAD_LETTERS = "/v1/dlq"


@dataclass(frozen=True)
class Stats:
    """Statistics over time: `series` has one column a name, all as long as `series["ts"]`."""

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
class Status:
    """The health of all parts: `pass`, `warn` or `fail`, and why."""

    status: str
    output: str = ""
    checks: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class WhoAmI:
    """The caller as the gateway sees it."""

    name: str
    scopes: Sequence[str]
    key_id: str | None = None
    tenant: str | None = None
    tasks: Sequence[str] | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class DeadLetter:
    """A message that could not become a finished job."""

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
    """Dead letters with the same kind of failure."""

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
    """All groups; `complete` is False if letters or small groups were left out."""

    groups: Sequence[DeadLetterGroup]
    total: int
    looked_at: int
    complete: bool


@dataclass(frozen=True)
class RedriveResult:
    """The jobs that a redrive made, and the letters that it skipped, with the reason's code."""

    redriven: Sequence[Any]
    skipped: Sequence[Any]
    dry_run: bool = False
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Violation:
    """A job for which the integrity check found a broken promise."""

    job_id: str
    rule: str
    detail: str = ""
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class AuditReport:
    """The outcome of an integrity check; `violations` has the first thousand."""

    jobs_checked: int
    violations_total: int
    duration_ms: float
    complete: bool = True
    violations: Sequence[Violation] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class AuditLogEntry:
    """An action with administrative rights (`/v1/trail`)."""

    id: str
    ts: int
    who: str
    name: str
    action: str
    target: str
    raw: Mapping[str, Any] = raw_field()


def stats(span: str | None = None, columns: Sequence[str] = ()) -> Request[Stats]:
    """Statistics over the last `10m`, `1h`, `6h`, `24h` or `14d`."""
    query = {"range": span, "columns": ",".join(columns) or None}
    return build_request("GET", "/v1/stats", model_reader(Stats), query=query)


def queues() -> Request[dict[str, Any]]:
    """The job queue, and the queues of BullMQ."""
    return build_request("GET", "/v1/queues", read_object)


def pause(name: str, why: str | None = None) -> Request[dict[str, Any]]:
    """Pauses a queue: running jobs go on, new ones wait."""
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


def status() -> Request[Status]:
    """The health of all parts; a 503 has the same body."""
    request = build_request("GET", "/v1/status", model_reader(Status))
    return replace(request, accepted_statuses=(503,))


def whoami() -> Request[WhoAmI]:
    """The caller as the gateway sees it."""
    return build_request("GET", "/v1/whoami", model_reader(WhoAmI))


def trail(limit: int | None = None, before: str | None = None) -> Request[Page[AuditLogEntry]]:
    """The audit log, newest entry first."""
    query = {"limit": limit, "before": before}
    return build_request("GET", "/v1/trail", page_reader(AuditLogEntry), query=query)


def dead_letters(
    reason: str | None = None,
    fingerprint: str | None = None,
    limit: int | None = None,
    before: str | None = None,
) -> Request[Page[DeadLetter]]:
    """Dead letters, newest first."""
    query = {"reason": reason, "fingerprint": fingerprint, "limit": limit, "before": before}
    return build_request("GET", _DEAD_LETTERS, page_reader(DeadLetter), query=query)


def dead_letter(letter_id: str) -> Request[DeadLetter]:
    """Reads one dead letter."""
    return build_request("GET", _letter_path(letter_id), model_reader(DeadLetter))


def _letter_path(letter_id: str) -> str:
    return f"{_DEAD_LETTERS}/{path_segment(letter_id)}"


def dead_letter_groups() -> Request[DeadLetterGroups]:
    """Dead letters by kind of failure, the largest group first."""
    return build_request("GET", f"{_DEAD_LETTERS}/groups", _read_groups)


def _read_groups(response: Response) -> DeadLetterGroups:
    data = response.json()
    groups = parse_models(DeadLetterGroup, require(data, "groups"))
    total, looked_at = require(data, "total"), require(data, "looked_at")
    if not isinstance(total, int) or not isinstance(looked_at, int):
        raise BadAnswer("the gateway's answer has no numbers where they belong; check the URL")
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
    """Makes new jobs of exactly one of: these letters, those of a reason, of a group, or all."""
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
        # Repeated for the same ids it returns the same jobs; for a group with more letters than
        # `limit` it would redrive the next ones.
        idempotent=ids is not None or dry_run,
    )


def redrive_one(letter_id: str) -> Request[str]:
    """Makes a new job of one letter; the response is its id, the same when repeated."""
    return build_request("POST", f"{_letter_path(letter_id)}/redrive", read_job_id, idempotent=True)


def purge(
    letter_id: str | None = None,
    *,
    reason: str | None = None,
    fingerprint: str | None = None,
    everything: bool = False,
) -> Request[int]:
    """Deletes dead letters; the response is how many."""
    if letter_id is not None:
        return build_request("DELETE", _letter_path(letter_id), lambda response: 1)
    query = {"reason": reason, "fingerprint": fingerprint, "all": everything or None}
    return build_request("DELETE", _DEAD_LETTERS, _read_purged, query=query)


def _read_purged(response: Response) -> int:
    number = require(response.json(), "purged")
    return number if isinstance(number, int) else 0


def last_audit() -> Request[dict[str, Any]]:
    """The outcome of the last integrity check, and totals of all of them."""
    return build_request("GET", "/v1/audit", read_object)


def audit() -> Request[None]:
    """Starts an integrity check; the response has one JSON object a line."""
    headers = {"Accept": NDJSON}
    return build_request("POST", "/v1/audit", read_nothing, headers=headers, idempotent=True)


class AuditParser:
    """Parses the lines of a running integrity check."""

    def __init__(self) -> None:
        self._violations: list[Violation] = []
        self._report: AuditReport | None = None

    def feed(self, line: bytes) -> dict[str, Any]:
        """The object in one line; raises the error that the gateway reports."""
        try:
            data: dict[str, Any] = json.loads(line)
            kind = data["type"]
        except (ValueError, KeyError, TypeError):
            raise BadAnswer("the gateway's answer is no audit; check the URL") from None
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
        """The report at the end; raises Broken if the gateway did not send it."""
        if self._report is None:
            raise Broken("the gateway broke off the audit; try again")
        return self._report

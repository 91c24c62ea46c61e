"""Request and job counters of this process. Counting a request takes less than a microsecond."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from starlette.requests import Request

from sluice.common.contracts.jobs import TASKS
from sluice.common.observability.histogram import Histogram
from sluice.gateway.auth.permissions import PERMISSIONS
from sluice.gateway.http.problems import PROBLEM_CODE

#: Histogram bucket bounds of request durations; the last ones are for `Prefer: wait`.
BOUNDS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
#: Label of paths without a route, so that a scanner cannot create time series.
UNMATCHED: Final = "unmatched"
#: Status of requests whose client disconnected before the response, as used by nginx.
CLIENT_LEFT: Final = 499
_OTHER_METHOD = "OTHER"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

#: Reason of a rejected request, by the code of its problem.
REJECTION_REASONS: Final[Mapping[str, str]] = {
    "key_required": "auth",
    "invalid_key": "auth",
    "insufficient_scope": "auth",
    "task_not_allowed": "auth",
    "key_limited": "auth",
    "option_not_allowed": "auth",
    "upload_token_required": "auth",
    "invalid_upload_token": "auth",
    "upload_token_expired": "auth",
    "upload_token_mismatch": "auth",
    "invalid_token": "auth",
    "token_expired": "auth",
    "token_mismatch": "auth",
    "session_not_allowed": "auth",
    "misdirected_request": "host",
    "foreign_origin": "origin",
    "not_from_dashboard": "origin",
    "session_read_only": "auth",
    "dashboard_read_only": "auth",
    "body_too_large": "size",
    "payload_too_large": "size",
    "document_too_large": "size",
    "headers_too_large": "size",
    "too_many_parts": "size",
    "request_timeout": "slow",
    "malformed_request": "malformed",
    "rate_limited": "rate",
    "quota_exceeded": "quota",
    "queue_full": "backpressure",
    "schedule_full": "backpressure",
    "under_pressure": "pressure",
    "too_many_streams": "streams",
    "too_many_sign_ins": "connections",
    "too_many_connections": "connections",
    "gateway_stopping": "stopping",
    "audit_running": "busy",
    "spool_unavailable": "storage",
    "storage_unavailable": "storage",
    "store_unavailable": "redis",
    "not_replicated": "redis",
    "store_corrupt": "redis",
    "audit_not_permitted": "redis",
}


_PATHS = {path for _, path in PERMISSIONS}
_PLAIN = frozenset(path for path in _PATHS if "{" not in path)
#: A parameter matches one part of a path, or with `:path` the rest of it.
_PARAMETER = re.compile(r"\{\w+(:path)?\}")


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(_PARAMETER.sub(lambda found: ".+" if found[1] else "[^/]+", template))


_PATTERNS = [(_pattern(path), path.replace(":path", "")) for path in sorted(_PATHS - _PLAIN)]


def template_of(path: str) -> str:
    """The route template of a path, as in the OpenAPI document."""
    if path in _PLAIN:
        return path
    for pattern, template in _PATTERNS:
        if pattern.fullmatch(path):
            return template
    return UNMATCHED


class _Series:
    """One combination of route, method and status; durations are shared by all statuses."""

    __slots__ = ("count", "durations")

    def __init__(self, durations: Histogram) -> None:
        self.count = 0
        self.durations = durations


class HttpMetrics:
    """Counts requests by route template, never by path."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.rejected: Counter[str] = Counter()
        self._series: dict[tuple[str, str, int], _Series] = {}
        self._durations: dict[tuple[str, str], Histogram] = {}

    def record_response(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        """Count a finished request; `seconds` is the time until the response began.

        A status of 0 means that there was no response because the client had disconnected.
        """
        self.in_flight -= 1
        status = status or CLIENT_LEFT
        path = scope["path"]
        if path not in _PLAIN:
            path = template_of(path)
        series = self._series.get((path, scope["method"], status))
        if series is None:
            series = self._new_series(path, scope["method"], status)
        series.count += 1
        series.durations.observe(seconds)
        if PROBLEM_CODE in scope:
            reason = REJECTION_REASONS.get(scope[PROBLEM_CODE])
            if reason is not None:
                self.rejected[reason] += 1

    def _new_series(self, path: str, method: str, status: int) -> _Series:
        method = method if method in _METHODS else _OTHER_METHOD
        series = self._series.get((path, method, status))
        if series is None:
            durations = self._durations.setdefault((path, method), Histogram(BOUNDS_S))
            series = self._series[path, method, status] = _Series(durations)
        return series

    def requests(self) -> Iterable[tuple[tuple[str, str, int], int]]:
        """Number of requests by route, method and status."""
        return ((labels, series.count) for labels, series in sorted(self._series.items()))

    def durations(self) -> Iterable[tuple[tuple[str, str], Histogram]]:
        return sorted(self._durations.items(), key=lambda item: item[0])

    def rejections(self, by_server: Mapping[str, int]) -> dict[str, int]:
        """Number of rejections for every reason.

        `by_server`: rejections by the HTTP server before the app was called, by problem code.
        """
        found = dict.fromkeys(sorted(set(REJECTION_REASONS.values())), 0)
        for reason, count in list(self.rejected.items()):
            found[reason] += count
        for code, count in list(by_server.items()):
            if code in REJECTION_REASONS:
                found[REJECTION_REASONS[code]] += count
        return found


class JobMetrics:
    """Counters of accepted jobs by task; only tasks of the contract are counted."""

    def __init__(self) -> None:
        self.submitted = dict.fromkeys(TASKS, 0)
        self.deduplicated = dict.fromkeys(TASKS, 0)

    def record_accepted(self, task: str, *, replayed: bool) -> None:
        """Count a job that was returned to a client; `replayed`: by an Idempotency-Key."""
        if replayed:
            self.deduplicated[task] += 1
        else:
            self.submitted[task] += 1


def job_metrics_of(request: Request) -> JobMetrics:
    metrics: JobMetrics = request.app.state.metrics.jobs
    return metrics

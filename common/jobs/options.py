"""Options of a job beyond task and payload: timeout, backoff, trace, tenant, tools, lane."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from sluice.common import codec
from sluice.common.codec import TENANT_PATTERN
from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import TTL_MAX_S, BackoffField, Option
from sluice.common.contracts.queue import EXTRA_LANES

#: The tenant of a job whose stored tenant is invalid. It matches no real tenant.
UNKNOWN_TENANT: Final = "?"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delay before the next attempt: it grows exponentially, up to a limit."""

    #: Seconds before the second attempt.
    initial_s: float = 1.0
    #: Factor between two delays.
    factor: float = 2.0
    #: Longest delay in seconds.
    max_s: float = 60.0
    #: Random share of the delay, 0 to 1, so that jobs that failed together do not retry together.
    jitter: float = 0.5

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after this many failed attempts."""
        try:
            longest = min(self.initial_s * self.factor ** (max(failures, 1) - 1), self.max_s)
        except OverflowError:
            longest = self.max_s
        return longest * random.uniform(1.0 - self.jitter, 1.0)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of a request and permissions of its caller; None if not set."""

    timeout_s: float | None = None
    backoff: Backoff | None = None
    #: The trace of the request (`sluice.common.observability.tracing`).
    traceparent: str | None = None
    tracestate: str | None = None
    #: The owner of the job, and the tools that the caller's key may use. None: no owner, all tools.
    tenant: str | None = None
    tools: tuple[str, ...] | None = None
    #: None for the normal lane.
    lane: str | None = None

    def to_json(self) -> bytes:
        """As stored in the lease; empty if no option is set."""
        options: dict[str, object] = {}
        if self.timeout_s is not None:
            options[Option.TIMEOUT_S] = self.timeout_s
        if self.backoff is not None:
            options[Option.BACKOFF] = {
                BackoffField.INITIAL_S: self.backoff.initial_s,
                BackoffField.FACTOR: self.backoff.factor,
                BackoffField.MAX_S: self.backoff.max_s,
                BackoffField.JITTER: self.backoff.jitter,
            }
        if self.traceparent is not None:
            options[Option.TRACEPARENT] = self.traceparent
            if self.tracestate is not None:
                options[Option.TRACESTATE] = self.tracestate
        if self.tenant:
            options[Option.TENANT] = self.tenant
        if self.tools is not None:
            options[Option.TOOLS] = list(self.tools)
        if self.lane is not None:
            options[Option.LANE] = self.lane
        return codec.dumps(options) if options else b""

    @classmethod
    def from_json(cls, raw: bytes) -> JobOptions:
        """Parse the options of a lease; invalid options are ignored, and grant no permissions."""
        if not raw:
            return NO_OPTIONS
        try:
            options = codec.loads(raw)
        except ValueError:
            options = None
        tenant, tools = parse_permissions(options)
        if not isinstance(options, dict):
            return cls(tenant=tenant, tools=tools)
        lane = _lane(options)
        try:
            timeout_s = options.get(Option.TIMEOUT_S)
            backoff = options.get(Option.BACKOFF)
            return cls(
                None if timeout_s is None else _number(timeout_s, _LEAST_S, TTL_MAX_S),
                None if backoff is None else _backoff(backoff),
                _text(options.get(Option.TRACEPARENT)),
                _text(options.get(Option.TRACESTATE)),
                tenant,
                tools,
                lane,
            )
        except (ValueError, TypeError, OverflowError):
            return cls(tenant=tenant, tools=tools, lane=lane)


def _backoff(options: object) -> Backoff:
    if not isinstance(options, dict):
        raise ValueError(f"{options!r} is not a backoff")
    return Backoff(
        **{
            field: _number(options[field], *_BOUNDS[field])
            for field in values_of(BackoffField)
            if field in options
        }
    )


def parse_permissions(options: object) -> tuple[str | None, tuple[str, ...] | None]:
    """Tenant and tools in stored options; invalid options grant no permissions."""
    if not isinstance(options, dict):
        return UNKNOWN_TENANT, ()
    return _tenant(options), _tools(options)


def _tenant(options: dict[str, Any]) -> str | None:
    tenant = options.get(Option.TENANT)
    if tenant is None:
        return None
    return tenant if isinstance(tenant, str) and TENANT_PATTERN.match(tenant) else UNKNOWN_TENANT


def _tools(options: dict[str, Any]) -> tuple[str, ...] | None:
    if Option.TOOLS not in options:
        return None
    tools = options[Option.TOOLS]
    if not isinstance(tools, list) or not all(isinstance(tool, str) for tool in tools):
        return ()
    return tuple(tools)


def _lane(options: dict[str, Any]) -> str | None:
    lane = options.get(Option.LANE)
    return lane if lane in EXTRA_LANES else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object, least: float, most: float) -> float:
    """A number within its bounds, from untrusted data."""
    number = float(str(value))
    if not least <= number <= most:
        raise ValueError(f"{number} is not between {least} and {most}")
    return number


_LEAST_S = 0.001
_BOUNDS = {
    BackoffField.INITIAL_S: (0.0, TTL_MAX_S),
    BackoffField.FACTOR: (1.0, 1e6),
    BackoffField.MAX_S: (0.0, TTL_MAX_S),
    BackoffField.JITTER: (0.0, 1.0),
}
NO_OPTIONS = JobOptions()

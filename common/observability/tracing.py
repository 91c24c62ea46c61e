"""Distributed tracing: W3C trace context in and out, and spans if a tracer provider is set.

Only the OpenTelemetry API is used, and imported only when there is a trace. Without a tracer
provider no spans are recorded. A request without `traceparent` costs nothing; with one, the trace
context still reaches the handler of its job.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

#: Span attributes. OpenTelemetry's conventions have no messaging system for Redis Streams.
MESSAGING_SYSTEM = "messaging.system"
REDIS = "redis"
DESTINATION = "messaging.destination.name"
CONSUMER_GROUP = "messaging.consumer.group.name"
CLIENT_ID = "messaging.client.id"
MESSAGE_ID = "messaging.message.id"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
ERROR_TYPE = "error.type"
JOB = "sluice.job.id"
TASK = "sluice.job.task"
ATTEMPT = "sluice.job.attempt"
OUTCOME = "sluice.job.outcome"
REPLAYED = "sluice.job.replayed"

_TRACEPARENT = re.compile(
    r"\A(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?\Z"
)
_MEMBER = re.compile(
    r"\A[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]\Z"
)
MOST_MEMBERS, MOST_STATE_CHARS = 32, 512
#: The flags that are passed on: sampled and random.
_KNOWN_FLAGS = 0x03


class TraceContext(NamedTuple):
    """The W3C trace context of a span."""

    traceparent: str
    tracestate: str | None = None

    @property
    def trace_id(self) -> str:
        """The trace id, 32 hexadecimal digits."""
        return self.traceparent[3:35]

    def to_span_context(self) -> SpanContext:
        """Convert to OpenTelemetry's type."""
        from opentelemetry.trace import SpanContext, TraceFlags, TraceState

        state = TraceState.from_header([self.tracestate]) if self.tracestate else None
        return SpanContext(
            int(self.traceparent[3:35], 16),
            int(self.traceparent[36:52], 16),
            is_remote=True,
            trace_flags=TraceFlags(int(self.traceparent[53:55], 16)),
            trace_state=state,
        )

    @classmethod
    def from_span(cls, span: Span) -> TraceContext | None:
        """The context of a span; None if the span is invalid."""
        at = span.get_span_context()
        if not at.is_valid:
            return None
        parent = f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags & _KNOWN_FLAGS:02x}"
        return cls(parent, at.trace_state.to_header() or None)


def parse_trace(traceparent: str, tracestate: Sequence[str] = ()) -> TraceContext | None:
    """Parse the headers of a request, or the copy in a lease; None if W3C says to ignore them."""
    found = _TRACEPARENT.match(traceparent.strip(" \t"))
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["more"]):
        return None
    if not int(found["trace"], 16) or not int(found["span"], 16):
        return None
    flags = int(found["flags"], 16) & _KNOWN_FLAGS
    return TraceContext(f"00-{found['trace']}-{found['span']}-{flags:02x}", _state(tracestate))


def _state(headers: Sequence[str]) -> str | None:
    """All members or nothing: a partial tracestate would mislead its vendor."""
    members = [member.strip(" \t") for member in ",".join(headers).split(",")]
    members = [member for member in members if member]
    whole = ",".join(members)
    names = {member.partition("=")[0] for member in members}
    if len(members) > MOST_MEMBERS or len(whole) > MOST_STATE_CHARS or len(names) < len(members):
        return None
    return whole if whole and all(_MEMBER.match(member) for member in members) else None


_API = "opentelemetry.trace"
#: Variable that names a provider, which the API loads on first use.
_CHOSEN_PROVIDER = "OTEL_PYTHON_TRACER_PROVIDER"

#: The tracer; None if no spans are recorded. Set by `set_provider`, read on the hot path.
tracer: Tracer | None = None


def set_provider(provider: TracerProvider | None) -> None:
    """Record spans with this provider; None records nothing."""
    global tracer
    tracer = None if provider is None else provider.get_tracer("sluice")


def use_global_provider() -> bool:
    """Record spans if OpenTelemetry is already configured in this process."""
    if _API not in sys.modules and not os.environ.get(_CHOSEN_PROVIDER):
        return False  # configuring OpenTelemetry would have imported it
    from opentelemetry import trace as otel

    provider = otel.get_tracer_provider()
    if isinstance(provider, (otel.ProxyTracerProvider, otel.NoOpTracerProvider)):
        return False
    set_provider(provider)
    return True


def context_with_span(span: Span) -> Context:
    """A context with this span as the current one."""
    from opentelemetry.trace import set_span_in_context

    return set_span_in_context(span)


def context_from_trace(trace: TraceContext | None) -> Context:
    """A context with a remote span as the current one; empty without a trace."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan

    return (
        Context() if trace is None else context_with_span(NonRecordingSpan(trace.to_span_context()))
    )

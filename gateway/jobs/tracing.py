"""The `send` span of a submission, in the trace of the request or in a new one."""

from __future__ import annotations

from types import TracebackType

from opentelemetry.trace import Span, SpanKind, StatusCode
from starlette.datastructures import Headers

from sluice.common.jobs.store import AcceptedJob
from sluice.common.observability import logs, tracing
from sluice.common.observability.tracing import TraceContext
from sluice.gateway.http.problems import Problem

TRACEPARENT, TRACESTATE, TRACERESPONSE = "traceparent", "tracestate", "traceresponse"


class SendSpan:
    """The `send` span of a block; does nothing if tracing is off and the request has no trace."""

    __slots__ = ("_span", "headers", "trace")

    def __init__(self, trace: TraceContext | None = None, span: Span | None = None) -> None:
        #: The trace that the job carries.
        self.trace = trace
        self._span = span
        #: Headers of the response.
        self.headers = {} if trace is None else {TRACERESPONSE: trace.traceparent}

    def record_accepted(self, accepted: AcceptedJob) -> None:
        """Record that the job was accepted, or replayed."""
        if self._span is not None:
            self._span.set_attribute(tracing.JOB, accepted.job_id)
            self._span.set_attribute(tracing.REPLAYED, accepted.replayed)

    def __enter__(self) -> SendSpan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._span is None:
            return
        if kind is not None:
            cause = error.code if isinstance(error, Problem) else kind.__name__
            self._span.set_attribute(tracing.ERROR_TYPE, cause)
            self._span.set_status(StatusCode.ERROR, cause)
        self._span.end()


_UNTRACED = SendSpan()


def start_send_span(headers: Headers, queue: str) -> SendSpan:
    """Start the span of a submission. `headers`: of the request."""
    given = headers.get(TRACEPARENT)
    if given is None and tracing.tracer is None:
        return _UNTRACED
    trace = None
    if given is not None and len(headers.getlist(TRACEPARENT)) == 1:
        trace = tracing.parse_trace(given, headers.getlist(TRACESTATE))
    span = None if tracing.tracer is None else _span(trace, queue)
    if span is not None:
        trace = TraceContext.from_span(span) or trace
    if trace is None:
        return _UNTRACED
    logs.trace_id.set(trace.trace_id)
    return SendSpan(trace, span)


def _span(trace: TraceContext | None, queue: str) -> Span:
    assert tracing.tracer is not None
    return tracing.tracer.start_span(
        f"send {queue}",
        tracing.context_from_trace(trace),
        SpanKind.PRODUCER,
        {
            tracing.MESSAGING_SYSTEM: tracing.REDIS,
            tracing.DESTINATION: queue,
            tracing.OPERATION_NAME: "send",
            tracing.OPERATION_TYPE: "send",
        },
    )

"""Collects spans in memory during a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sluice.common.observability import tracing


class Spans:
    """Recorded spans, in the order they ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, word: str) -> list[ReadableSpan]:
        """Spans whose name starts with a word."""
        return [span for span in self.all if span.name.split()[0] == word]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[str, str]:
    """Trace id and span id, in W3C hex format."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


@contextmanager
def collecting() -> Iterator[Spans]:
    spans = Spans()
    tracing.set_provider(spans.provider)
    try:
        yield spans
    finally:
        tracing.set_provider(None)
        spans.provider.shutdown()

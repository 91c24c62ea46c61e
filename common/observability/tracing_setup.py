"""Sets up the OpenTelemetry SDK from its standard environment variables at start-up."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import Any

from sluice.common.observability import tracing

log = logging.getLogger(__name__)

#: Seconds that unsent spans may delay the end of the process.
FLUSH_S = 2.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_EXPORTER = "OTEL_TRACES_EXPORTER"
_OTLP = "opentelemetry.exporter.otlp.proto.http.trace_exporter"

#: The provider created here, which must be shut down.
_provider: Any = None


def start(service: str) -> None:
    """Start tracing if the environment configures an exporter; errors are only logged.

    A provider that already exists (`opentelemetry-instrument`, a test) is used as it is.
    """
    global _provider
    if tracing.tracer is not None or tracing.use_global_provider():
        return
    kind = _exporter_kind()
    if not kind:
        return
    try:
        _provider = _make_provider(service, kind)
    except ImportError as error:
        log.warning("tracing is off: %s; install sluice with its extra `otel`", error)
    except Exception as error:  # an invalid variable must not stop jobs from running
        log.warning("tracing is off: cannot set up OpenTelemetry: %s", error)
    else:
        from opentelemetry import trace as otel

        otel.set_tracer_provider(_provider)
        tracing.set_provider(_provider)
        log.info("tracing: exporting spans by %s", kind)


def stop() -> None:
    """Send remaining spans, for at most FLUSH_S."""
    global _provider
    provider, _provider = _provider, None
    if provider is None:
        return
    tracing.set_provider(None)
    flushing = threading.Thread(target=provider.shutdown, name="traces", daemon=True)
    flushing.start()
    flushing.join(FLUSH_S)
    if flushing.is_alive():
        log.warning("tracing: could not send the last spans within %.0f s", FLUSH_S)


def _exporter_kind() -> str:
    """`otlp` or `console`; empty if tracing is off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    kind = os.environ.get(_EXPORTER, "").strip().lower()
    if kind:
        return "" if kind == "none" else kind
    return "otlp" if any(os.environ.get(name) for name in _ENDPOINTS) else ""


def _make_provider(service: str, kind: str) -> Any:
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")
    resources = importlib.import_module("opentelemetry.sdk.resources")
    if kind == "console":
        exporter = export.ConsoleSpanExporter()
    elif kind == "otlp":
        exporter = importlib.import_module(_OTLP).OTLPSpanExporter()
    else:
        raise ValueError(f"{_EXPORTER}={kind!r} must be otlp, console or none")
    named = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = named or bool(os.environ.get("OTEL_SERVICE_NAME"))
    resource = resources.Resource.create({} if named else {"service.name": service})
    provider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return provider

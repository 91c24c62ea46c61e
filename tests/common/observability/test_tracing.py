"""W3C trace context: valid headers are passed on, invalid ones ignored."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider

from sluice.common.jobs.options import JobOptions
from sluice.common.observability import tracing, tracing_setup
from sluice.common.observability.tracing import TraceContext, parse_trace

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        (GOOD, GOOD),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f" {GOOD}\t", GOOD),
        # A later version is read as far as it is known, and passed on as version 00.
        (f"cc-{TRACE}-{SPAN}-01", GOOD),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", GOOD),
        # Undefined flags are not passed on.
        (f"00-{TRACE}-{SPAN}-fd", GOOD),
    ],
)
def test_a_valid_traceparent_is_passed_on(given: str, carried: str) -> None:
    assert parse_trace(given) == TraceContext(carried)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "junk",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"{GOOD}\n",
        f"00-{TRACE}-{SPAN}-0\u0661",
        GOOD * 1000,
    ],
)
def test_an_invalid_traceparent_is_ignored(given: str) -> None:
    assert parse_trace(given, ["a=1"]) is None


@pytest.mark.parametrize(
    ("headers", "carried"),
    [
        ([], None),
        ([""], None),
        (["a=1"], "a=1"),
        (["a=1 , b@c=2", "d=3"], "a=1,b@c=2,d=3"),
        (["a=1,,b=2"], "a=1,b=2"),
        (["a=1,a=2"], None),
        (["A=1"], None),
        (["a"], None),
        (["a=1=2"], None),
        (["a=\u00e9"], None),
        ([",".join(f"k{number}=1" for number in range(33))], None),
        (["a=" + "x" * 511], None),
    ],
)
def test_a_tracestate_is_passed_on_as_a_whole(headers: list[str], carried: str | None) -> None:
    assert parse_trace(GOOD, headers) == TraceContext(GOOD, carried)


@given(st.text(max_size=80), st.lists(st.text(max_size=40), max_size=3))
def test_no_input_raises_an_error(traceparent: str, tracestate: list[str]) -> None:
    found = parse_trace(traceparent, tracestate)
    assert found is None or found == parse_trace(found.traceparent, [found.tracestate or ""])


def test_a_trace_survives_conversion_to_opentelemetry() -> None:
    trace = TraceContext(GOOD, "vendor=x,other=y")
    assert TraceContext.from_span(otel.NonRecordingSpan(trace.to_span_context())) == trace
    assert trace.to_span_context().is_remote
    assert trace.trace_id == TRACE


def test_a_trace_is_stored_in_the_lease() -> None:
    options = JobOptions(1.5, None, GOOD, "a=1")
    assert options.to_json() == (
        b'{"timeout_s":1.5,"traceparent":"%b","tracestate":"a=1"}' % GOOD.encode()
    )
    assert JobOptions.from_json(options.to_json()) == options
    assert JobOptions.from_json(b'{"traceparent":17,"tracestate":[]}') == JobOptions()


def test_spans_are_created_only_with_a_provider() -> None:
    assert tracing.tracer is None
    assert not tracing.use_global_provider()
    tracing.set_provider(TracerProvider())
    try:
        assert tracing.tracer is not None
    finally:
        tracing.set_provider(None)


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ""),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "otlp"}, ""),
    ],
)
def test_standard_variables_configure_the_exporter(
    env: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EXPORTER_OTLP_ENDPOINT", "EXPORTER_OTLP_TRACES_ENDPOINT", "TRACES_EXPORTER"):
        monkeypatch.delenv(f"OTEL_{name}", raising=False)
    monkeypatch.delenv("OTEL_SDK_DISABLED", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert tracing_setup._exporter_kind() == kind


def run(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    head = (
        "import logging, sys, time\n"
        "from sluice.common.observability import tracing, tracing_setup\n"
        "logging.basicConfig(level='INFO')\n"
    )
    return subprocess.run(
        [sys.executable, "-c", head + program], env=env, capture_output=True, text=True, timeout=60
    )


START_AND_STOP = (
    "tracing_setup.start('sluice-test')\n"
    "tracing.tracer.start_span('last').end()\n"
    "tracing_setup.stop()\n"
)


@pytest.mark.parametrize(
    ("env", "service"),
    [
        ({}, "sluice-test"),
        pytest.param(
            {"OTEL_SERVICE_NAME": "mine"}, "mine", marks=pytest.mark.slow("starts a process")
        ),
    ],
)
def test_a_process_exports_its_last_spans(env: dict[str, str], service: str) -> None:
    """The configured service name takes precedence."""
    ended = run(START_AND_STOP, OTEL_TRACES_EXPORTER="console", **env)
    assert ended.returncode == 0, ended.stderr
    assert '"name": "last"' in ended.stdout
    assert f'"service.name": "{service}"' in ended.stdout


def test_a_collector_that_hangs_does_not_block_the_end() -> None:
    ended = run(
        "tracing_setup.FLUSH_S = 0.2\n"
        "from opentelemetry.sdk.trace.export import ConsoleSpanExporter\n"
        "ConsoleSpanExporter.export = lambda *_: time.sleep(600)\n" + START_AND_STOP,
        OTEL_TRACES_EXPORTER="console",
    )
    assert ended.returncode == 0
    assert "could not send the last spans within 0 s" in ended.stderr


@pytest.mark.parametrize(
    ("program", "env", "said"),
    [
        (
            "sys.modules['opentelemetry.sdk.trace'] = None\n",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
            "install sluice with its extra `otel`",
        ),
        ("", {"OTEL_TRACES_EXPORTER": "pigeon"}, "must be otlp, console or none"),
    ],
)
def test_an_invalid_setup_prevents_no_start(program: str, env: dict[str, str], said: str) -> None:
    ended = run(f"{program}tracing_setup.start('x')\nassert tracing.tracer is None\n", **env)
    assert ended.returncode == 0, ended.stderr
    assert said in ended.stderr


def test_without_configuration_nothing_is_set_up() -> None:
    ended = run(
        "tracing_setup.start('x')\n"
        "assert tracing.tracer is None\n"
        "assert 'opentelemetry.sdk' not in sys.modules\n"
    )
    assert (ended.returncode, ended.stderr) == (0, "")

"""`GET /metrics`: valid for Prometheus, cheap, bounded, and never an error."""

from __future__ import annotations

import re
import time
import timeit
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from redis.exceptions import NoPermissionError

from sluice.common.contracts.workers import HISTOGRAM_BOUNDS, TaskCounter, TaskHistogram
from sluice.common.jobs.audit.report import AuditReport, Violation, store_report
from sluice.common.jobs.audit.rules import Rule
from sluice.common.jobs.queue_stats import QueueReading
from sluice.common.observability.heartbeats import Heartbeat, Histogram, MachineReading, TaskNumbers
from sluice.gateway.http.connection_limits import ConnectionLimits
from sluice.gateway.jobs.routes import SEND_TIMEOUT_S
from sluice.gateway.observability.metrics import routes as route
from sluice.gateway.observability.metrics.collector import METRICS
from sluice.gateway.observability.metrics.http import (
    REJECTION_REASONS,
    UNMATCHED,
    HttpMetrics,
    template_of,
)
from sluice.gateway.observability.metrics.workers import JOB_COUNTS
from sluice.gateway.observability.snapshot.redis import StallTracker
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import CHAT, Gateway, Make
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

ROOT = Path(__file__).parents[4]
Series = tuple[str, frozenset[tuple[str, str]]]


class Scrape(dict[Series, float]):
    """Samples by name and labels."""

    def value(self, name: str, **labels: str) -> float:
        return self[name, frozenset(labels.items())]

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for found, labels in self if found == name]

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self}


async def scrape(gateway: Gateway, accept: str = "") -> Scrape:
    """Scrape and parse strictly: each series occurs once, and each family is complete."""
    answer = await gateway.client.get("/metrics", {"accept": accept} if accept else {})
    assert answer.status == 200
    text = answer.body.decode()
    if "openmetrics" in accept:
        assert (answer.header("content-type") or "").startswith("application/openmetrics-text")
        families = list(parse_openmetrics(text))
    else:
        assert answer.header("content-type") == "text/plain; version=0.0.4; charset=utf-8"
        families = list(parse_text(text))
    found = Scrape()
    known = {metric.name: metric for metric in METRICS}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert known[name].kind == family.type
        assert known[name].meaning == family.documentation
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(known[name].labels)
            series = sample.name, frozenset(sample.labels.items())
            assert series not in found, series
            found[series] = sample.value
    assert found
    return found


def test_metric_names_follow_conventions() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"gw_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.meaning.endswith("."), metric.name
        assert not {"job_id", "tenant", "path", "key"} & set(metric.labels)
    assert {f"gw_jobs_{count.value}_total" for count in TaskCounter} <= set(names)
    assert set(JOB_COUNTS) == set(TaskCounter)


async def test_an_empty_redis_has_zeros(gateway: Gateway) -> None:
    found = await scrape(gateway)
    zeros = ("queue_depth", "queue_pending", "scheduled_jobs", "dlq_depth", "jobs_lost_total")
    for name in (*zeros, "workers"):
        assert found.value(f"gw_{name}") == 0, name
    assert found.value("gw_up") == 1
    assert found.value("gw_queue_backlog_limit") == 200
    assert found.value("gw_process_resident_memory_bytes") > 1 << 20
    assert found.value("gw_process_open_fds") > 0
    assert found.value("gw_jobs_submitted_total", task="chat") == 0
    assert abs(found.value("gw_clock_skew_seconds")) < 1
    assert len(found.labels("gw_build_info")) == 1


async def test_openmetrics_is_sent_on_request(gateway: Gateway) -> None:
    await with_workers(gateway)
    name = 'x"} 1\ngw_up{y="'  # only a label
    await gateway.heartbeat(beat(name, host="\\\n"))
    kind = "application/openmetrics-text"
    many = f"{kind};version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.3"
    for accept in (kind, f"{kind}; version=1.0.0; charset=utf-8", many, "*/*;q=x, text/html"):
        found = await scrape(gateway, accept)
        assert found.value("gw_jobs_started_total", task="chat", worker="w1") == 7
        assert {"worker": name} in found.labels("gw_worker_up")
        assert found.value("gw_up") == 1


async def test_queue_metrics_have_the_values_of_redis(gateway: Gateway) -> None:
    for _ in range(5):
        await gateway.create()
    group = gateway.state.settings.worker_group
    await gateway.redis.xgroup_create(gateway.keys.queue, group, id="0")
    await gateway.redis.xgroup_create(gateway.keys.queue, "others", id="$")
    reply = await gateway.redis.xreadgroup(group, "c", {gateway.keys.queue: ">"}, count=3)
    await gateway.redis.zadd(gateway.keys.scheduled, {"a": 1, "b": 2})
    await gateway.redis.xadd(gateway.keys.dead_letters, {"x": "y"})
    counts = {"accepted": 9, "done": 1234567890120, "error": 2, "canceled": 1}
    await gateway.redis.hset(gateway.keys.counts, mapping=counts)
    lost = Violation("x", Rule.NOT_QUEUED, ""), Violation("y", Rule.NO_TTL, "")
    report = AuditReport(1_760_000_000_123, 7, 250, lost, 2)
    await store_report(gateway.redis, gateway.keys, report)
    entry = reply[0][1][0][0]
    await gateway.redis.execute_command(
        "XCLAIM", gateway.keys.queue, group, "c", 0, entry, "IDLE", 90_000
    )
    found = await scrape(gateway)
    assert (found.value("gw_queue_depth"), found.value("gw_queue_pending")) == (2, 3)
    assert 90 <= found.value("gw_queue_pending_oldest_idle_seconds") < 120
    assert (found.value("gw_scheduled_jobs"), found.value("gw_dlq_depth")) == (2, 1)
    assert found.value("gw_jobs_finished_total") == 1234567890123
    assert found.value("gw_jobs_submitted_total", task="chat") == 5
    assert found.value("gw_jobs_lost_total") == 1
    totals = {"jobs_checked_total": 7, "violations_total": 2, "last_violations": 2}
    last = {"last_timestamp_seconds": 1_760_000_000.123, "last_duration_seconds": 0.25}
    for name, value in {**totals, **last}.items():
        assert found.value(f"gw_audit_{name}") == value, name


async def test_requests_are_counted_by_template(gateway: Gateway, make: Make) -> None:
    client = gateway.client
    job_id = await gateway.create()
    await client.get(f"/v1/jobs/{job_id}")
    await client.get("/v1/jobs/unknown-one")
    await client.get("/v1/jobs/unknown-two")
    await client.send("PUT", "/v1/jobs")
    await client.send("BREW", "/v1/jobs")
    for number in range(50):
        await client.get(f"/admin{number}.php")
    found = await scrape(gateway)

    for path, method, code, number in (
        ("/v1/jobs", "POST", "202", 1),
        ("/v1/jobs", "PUT", "405", 1),
        ("/v1/jobs", "OTHER", "405", 1),
        ("/v1/jobs/{job_id}", "GET", "200", 1),
        ("/v1/jobs/{job_id}", "GET", "404", 2),
        (UNMATCHED, "GET", "404", 50),
    ):
        labels = {"route": path, "method": method, "code": code}
        assert found.value("gw_http_requests_total", **labels) == number, labels
    count = "gw_http_request_duration_seconds_count"
    assert found.value(count, route="/v1/jobs/{job_id}", method="GET") == 3
    assert found.value("gw_http_in_flight") == 1, "the scrape itself"
    again = await scrape(gateway)
    labels = {"route": "/metrics", "method": "GET", "code": "200"}
    assert again.value("gw_http_requests_total", **labels) == 1
    for _ in range(3):
        await gateway.create(idempotency_key="once")
    found = await scrape(gateway)
    assert found.value("gw_jobs_submitted_total", task="chat") == 2
    assert found.value("gw_jobs_deduplicated_total", task="chat") == 2
    other = make()
    assert (await scrape(other)).value("gw_jobs_submitted_total", task="chat") == 0
    assert not list(other.app.state.metrics.collect()), "empty outside of an exposition"


def test_every_route_has_its_own_label(document: dict[str, Any]) -> None:
    paths = [*document["paths"], "/openapi.json", "/docs", "/", "/ui"]
    for path in paths:
        assert template_of(re.sub(r"\{\w+\}", "x", path)) == path
    assert template_of("/v1/models/a/b") == "/v1/models/{model}"
    assert template_of("/ui/jobs/a") == template_of("/ui/any/other/page") != UNMATCHED
    for path in ("/v1", "/v1/jobs/", "/v1/jobs/a/b", "/v1/jobs//events", "//", "/metrics/x"):
        assert template_of(path) == UNMATCHED, path


def test_counting_a_request_is_cheap() -> None:
    """The bound is generous for busy machines; the docs have a measured number."""
    numbers, scope = HttpMetrics(), {"path": "/v1/jobs", "method": "POST"}
    numbers.in_flight = 1
    numbers.record_response(scope, 0, 0.5)  # the client has left
    assert dict(numbers.requests()) == {("/v1/jobs", "POST", 499): 1}
    assert numbers.in_flight == 0
    times_s = timeit.repeat(
        lambda: numbers.record_response(scope, 202, 0.001), number=2000, repeat=10
    )
    assert min(times_s) / 2000 < 10e-6


async def test_rejections_have_reasons(make: Make) -> None:
    gateway = make(backpressure_max_backlog=1, sse_max_clients=1)
    client = gateway.client
    job_id = await gateway.create()
    await client.post(CHAT)
    await client.post({**CHAT, "payload": {"x": "x" * 200_000}})
    await client.get("/v1/jobs/x", {"authorization": "Bearer nonsense"})
    await client.get(f"/v1/jobs/{job_id}", [("host", "evil.example")])
    stream = await client.watch(job_id)
    await stream.next()
    await client.get(f"/v1/jobs/{job_id}/events")
    found = await scrape(gateway)
    given = {
        labels["reason"]: found.value("gw_http_rejected_total", **labels)
        for labels in found.labels("gw_http_rejected_total")
    }
    assert {reason: count for reason, count in given.items() if count} == {
        **dict.fromkeys(("backpressure", "size", "auth", "streams"), 1),
        **{reason: given[reason] for reason in ("host", "malformed") if given[reason]},
    }
    assert set(given) == set(REJECTION_REASONS.values())
    limits = ConnectionLimits(1, 1024, 1.0)  # of the HTTP server
    limits.refused.update({"headers_too_large": 3, "request_timeout": 2, "unheard_of": 1})
    limits.stalled = 4
    gateway.app.state.metrics.connection_limits = limits
    found = await scrape(gateway)
    assert found.value("gw_http_rejected_total", reason="size") == 4
    assert found.value("gw_http_rejected_total", reason="slow") == 2
    assert found.value("gw_sse_slow_closed_total") == 4


REJECTING = re.compile(r'Problem\(\s*(401|403|408|413|421|429|431|503),\s*"([a-z_]+)"')


def test_every_rejecting_problem_has_a_reason() -> None:
    sources = [path.read_text() for path in (ROOT / "gateway").rglob("*.py")]
    codes = {code for source in sources for _, code in REJECTING.findall(source)}
    assert len(codes) > 10
    assert codes - set(REJECTION_REASONS) == set()


# -- event streams -------------------------------------------------------------------------------


async def test_streams_are_counted(gateway: Gateway) -> None:
    job_id = await gateway.create()
    first = await gateway.client.watch(job_id)
    queued = await first.event("queued")
    await eventually(lambda: all(watch.live for watch in gateway.hub._subscribers))
    await gateway.emit(job_id, "message")
    await first.event("message")
    second = await gateway.client.watch(job_id, {"last-event-id": queued.id or ""})
    await second.event("message")
    found = await scrape(gateway)
    assert found.value("gw_sse_clients") == 2
    assert found.value("gw_sse_resumes_total") == 1
    assert found.value("gw_sse_events_total") == 3
    assert found.value("gw_sse_bytes_total") > 150
    assert found.value("gw_sse_lag_seconds_count") == 1, "stored events have no lag"
    await gateway.finish(job_id)
    await first.rest()
    await second.rest()
    assert (await scrape(gateway)).value("gw_sse_clients") == 0


async def test_a_client_that_stops_reading_is_counted(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SEND_TIMEOUT_S >= 10
    monkeypatch.setattr("sluice.gateway.jobs.routes.SEND_TIMEOUT_S", 0.05)
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id)
    await stream.next()
    stream.take.clear()
    await gateway.emit(job_id, "message")
    await eventually(lambda: gateway.hub.metrics.slow_closed == 1)
    assert (await scrape(gateway)).value("gw_sse_slow_closed_total") == 1


# -- workers ---------------------------------------------------------------------------------------


def beat(name: str, **changes: Any) -> Heartbeat:
    counts = [0] * (len(HISTOGRAM_BOUNDS[TaskHistogram.RUN]) + 1)
    counts[3], counts[-1] = 5, 2
    numbers = TaskNumbers(
        started=7, succeeded=6, failed=1, run=Histogram(counts=counts, sum=9000.0)
    )
    fields: dict[str, Any] = {
        "consumer": name,
        "host": "orin",
        "in_flight": 2,
        "max_inflight": 16,
        "seen_ms": 1,
        "box": MachineReading(
            memory_pressure=0.5, temperature_c=55.5, hottest="gpu", power_mode="15W"
        ),
        "tally": {"chat": numbers, "embed": TaskNumbers()},
    }
    return Heartbeat(**{**fields, **changes})


async def with_workers(gateway: Gateway) -> None:
    await gateway.heartbeat(
        beat("w1"), beat("w2", seen_ms=2, box=MachineReading(temperature_c=60.0))
    )


async def test_worker_metrics_have_the_values_of_heartbeats(gateway: Gateway) -> None:
    await with_workers(gateway)
    found = await scrape(gateway)
    assert found.value("gw_workers") == 2
    assert found.labels("gw_worker_up") == [{"worker": "w1"}, {"worker": "w2"}]
    assert found.value("gw_worker_busy", worker="w1") == 2
    assert found.value("gw_worker_slots", worker="w1") == 16
    assert found.value("gw_jobs_succeeded_total", task="chat", worker="w2") == 6
    assert found.value("gw_jobs_failed_total", task="embed", worker="w2") == 0
    chat = {"task": "chat", "worker": "w1"}
    assert found.value("gw_job_run_seconds_count", **chat) == 7
    assert found.value("gw_job_run_seconds_sum", **chat) == 9000
    for le, count in (("0.005", 0), ("0.01", 5), ("1800.0", 5), ("+Inf", 7)):
        assert found.value("gw_job_run_seconds_bucket", le=le, **chat) == count
    assert found.labels("gw_temperature_celsius") == [{"host": "orin", "sensor": ""}]
    assert "gw_mem_pressure_full_avg10" not in found.names, "the last heartbeat has none"
    await gateway.redis.delete(gateway.keys.worker("w1"))
    later = await scrape(gateway)
    assert later.labels("gw_worker_up") == [{"worker": "w2"}]
    assert not [labels for labels in later if ("worker", "w1") in labels[1]]


@pytest.mark.parametrize("more", [(), ("INFO", "XLEN")], ids=["length known", "length unknown"])
async def test_under_an_acl_queue_values_come_from_heartbeats(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """Workers report the values that the gateway's Redis user may not read."""
    refuse(gateway, monkeypatch, "XINFO", "XPENDING", "MEMORY", *more)
    await gateway.create()
    found = await scrape(gateway)
    assert found.value("gw_up") == 1
    unknown = {"gw_queue_depth", "gw_queue_oldest_age_seconds", "gw_stream_bytes"}
    assert not more or not found.names & {*unknown, "gw_redis_memory_ratio"}
    reported = QueueReading(
        length=9, waiting=4, pending=5, oldest_ms=1, idle_ms=3000, stream_bytes=99
    )
    old, new = beat("old", queue=QueueReading(pending=77)), beat("new", seen_ms=2, queue=reported)
    await gateway.heartbeat(old, new)
    found = await scrape(gateway)
    assert (found.value("gw_queue_depth"), found.value("gw_queue_pending")) == (4, 5)
    assert found.value("gw_queue_oldest_age_seconds") > 1e9
    assert found.value("gw_queue_pending_oldest_idle_seconds") == 3
    assert found.value("gw_stream_bytes") == 99


async def test_stalled_queue_is_detected(gateway: Gateway) -> None:
    await gateway.create()
    assert (await scrape(gateway)).value("gw_queue_oldest_age_seconds") < 1
    gateway.app.state.metrics.stall_tracker._since_s -= 100
    assert (await scrape(gateway)).value("gw_queue_oldest_age_seconds") >= 100
    reported = QueueReading(waiting=9, oldest_ms=int(time.time() * 1000) - 7_000_000)
    await gateway.heartbeat(beat("w", queue=reported))
    found = await scrape(gateway)
    assert found.value("gw_queue_depth") == 1, "its own value is newer"
    assert found.value("gw_queue_oldest_age_seconds") >= 7000, "reported by the worker"


async def test_unknown_lag_is_estimated(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis 6.2 reports no lag, and newer versions report none for a while after a deletion."""
    for _ in range(3):
        await gateway.create()
    group = {"name": b"workers", "last-delivered-id": b"1-0", "pending": 1, "lag": None}
    refuse(gateway, monkeypatch, "XINFO", reply=[group])
    found = await scrape(gateway)
    assert found.value("gw_queue_depth") == 2
    assert "gw_queue_oldest_age_seconds" not in found.names
    await gateway.heartbeat(beat("w", queue=QueueReading(waiting=1, oldest_ms=1)))
    assert (await scrape(gateway)).value("gw_queue_depth") == 1


def test_the_stall_tracker_measures_time_without_progress() -> None:
    stall_tracker = StallTracker()
    assert stall_tracker.age_s("1-0", 3, 10.0) == 0
    assert stall_tracker.age_s("1-0", 3, 15.0) == 5
    assert stall_tracker.age_s("2-0", 3, 16.0) == 0
    assert stall_tracker.age_s("2-0", 0, 17.0) == 0
    assert stall_tracker.age_s("2-0", 1, 20.0) == 0, "it had been empty"
    assert stall_tracker.age_s(None, None, 21.0) is None
    assert stall_tracker.age_s("2-0", 1, 22.0) == 0


def refuse(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, *commands: str, reply: object = None
) -> None:
    """Reject commands as an ACL does; `reply` replaces the error."""
    client = gateway.state.client
    pipeline = client.pipeline

    def limited(*args: Any, **options: Any) -> Any:
        pipe = pipeline(*args, **options)
        execute = pipe.execute

        async def refusing(*args: Any, **options: Any) -> Any:
            names = [command[0][0].split(" ")[0] for command in pipe.command_stack]
            replies = await execute(*args, **options)
            instead = reply or NoPermissionError("this user has no permissions")
            return [instead if name in commands else got for name, got in zip(names, replies)]

        pipe.execute = refusing
        return pipe

    monkeypatch.setattr(client, "pipeline", limited)


# -- errors and limits -----------------------------------------------------------------------------


async def test_a_scrape_takes_two_round_trips(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        await gateway.create()
    await with_workers(gateway)
    client = gateway.state.client
    trips = Mock(wraps=client.pipeline)
    monkeypatch.setattr(client, "pipeline", trips)
    monkeypatch.setattr(client, "execute_command", raising(AssertionError("not in a pipeline")))
    assert (await scrape(gateway)).value("gw_up") == 1
    assert trips.call_count == 2


async def test_invalid_values_of_redis_are_left_out(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = gateway.keys
    many: Any = {"done": b"\xffmany"}
    await gateway.redis.hset(keys.counts, mapping=many)
    odd: Any = {"last_ts": "nan", "last_violations": "1e400", "violations_total": b"\xff"}
    await gateway.redis.hset(keys.audit, mapping=odd)
    found = await scrape(gateway)
    assert found.value("gw_jobs_finished_total") == 0
    assert found.value("gw_audit_last_violations") == 0
    await gateway.redis.delete(keys.counts, keys.audit)
    for key in (keys.queue, keys.scheduled, keys.dead_letters, keys.workers):
        await gateway.redis.set(key, "x")
    for key in (keys.counts, keys.audit):
        await gateway.redis.rpush(key, "x")
    found = await scrape(gateway)
    assert found.value("gw_up") == 1
    left_out = {"gw_queue_depth", "gw_queue_pending", "gw_scheduled_jobs", "gw_dlq_depth"}
    left_out |= {"gw_jobs_finished_total", "gw_jobs_lost_total", "gw_audit_violations_total"}
    assert not found.names & left_out

    monkeypatch.setattr(route, "read_facts", raising(ConnectionError("gone")))
    found = await scrape(gateway)
    assert found.value("gw_up") == 0
    assert found.value("gw_process_open_fds") > 0
    assert not found.names & {"gw_queue_depth", "gw_workers", "gw_redis_rtt_seconds"}


# -- documentation -------------------------------------------------------------------------------

DOCUMENT = (ROOT / "docs" / "observability.md").read_text()


def test_every_metric_and_reason_is_documented() -> None:
    rows = []
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |")
    assert [line for line in DOCUMENT.splitlines() if line.startswith("| `gw_")] == rows
    _, _, rest = DOCUMENT.partition("\n| `reason` |")
    assert set(re.findall(r"`(\w+)`", rest.partition("\n\n")[0])) == set(REJECTION_REASONS.values())

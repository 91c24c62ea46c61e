"""Both clients against a gateway that fails in scripted ways: retries, reconnections, errors."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from sluice import Sluice
from sluice.errors import (
    BadAnswer,
    Broken,
    Conflict,
    ExitCode,
    Invalid,
    Misconfigured,
    NotAllowed,
    NotFound,
    RateLimited,
    Refused,
    SluiceError,
    Unavailable,
    Unreachable,
    WaitTimeout,
)
from sluice.transport import event_stream, retry
from tests.sluice.conftest import Connect
from tests.support.client.scripted_gateway import (
    Reply,
    ScriptedGateway,
    answer,
    event,
    json_lines,
    problem,
    stream,
)
from tests.support.processes.gateway import free_port
from tests.support.processes.worker import wait_until
from tests.worker.features.webhooks.certificates import Authority

pytestmark = pytest.mark.usefixtures("short_pauses")

ACCEPTED = answer(202, {"job_id": "j1"})
HELLO = event("", "hello", {"job_id": "j1"}, retry_ms=1)


def job(status: str = "done", **more: object) -> dict[str, object]:
    times = {"created_ts": 1, "updated_ts": 2, "ttl_s": 600}
    return {"job_id": "j1", "task": "chat", "status": status, **times, "result": None, **more}


@pytest.fixture
def client(connect: Connect, script: ScriptedGateway) -> Any:
    return connect(script.url)


# -- retries -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        Reply(),  # closes the connection without a response
        Reply(reset=True),
        Reply(b"HTTP/1.1 202 Accepted\r\nContent-Length: 999\r\n\r\n{"),
        problem(503, "store_unavailable", Retry_After="0"),
        problem(429, "queue_full", Retry_After="0"),
        problem(503, "under_pressure", Retry_After_Ms="3"),
        answer(502),
        answer(504, {"detail": "a proxy"}),
    ],
)
def test_submission_is_retried_with_the_same_key(
    client: Any, script: ScriptedGateway, failure: Reply
) -> None:
    script.respond(failure, failure, ACCEPTED)
    assert client.submit("chat", {"text": "a"}).id == "j1"
    keys = {request.headers["idempotency-key"] for request in script.requests}
    assert len(script.requests) == 3
    assert len(keys) == 1
    assert all(request.json == script.requests[0].json for request in script.requests)


def test_submissions_have_different_keys(client: Any, script: ScriptedGateway) -> None:
    script.respond(ACCEPTED, ACCEPTED, ACCEPTED)
    client.submit("chat", {})
    client.submit("chat", {})
    client.submit("chat", {}, idempotency_key="mine")
    first, second, third = (request.headers["idempotency-key"] for request in script.requests)
    assert first != second
    assert third == "mine"


def test_retries_are_limited(connect: Connect, script: ScriptedGateway) -> None:
    script.respond(*[problem(503, "store_unavailable", Retry_After="0")] * 9)
    with pytest.raises(Unavailable) as raised:
        connect(script.url, retries=2).submit("chat", {})
    assert len(script.requests) == 3
    assert raised.value.code == "store_unavailable"
    assert raised.value.exit_code == ExitCode.UNREACHABLE


def test_retry_after_is_respected_unless_it_is_long(client: Any, script: ScriptedGateway) -> None:
    script.respond(problem(429, "rate_limited", Retry_After="9", Retry_After_Ms="300"), ACCEPTED)
    started = time.monotonic()
    client.submit("chat", {})
    assert 0.3 <= time.monotonic() - started < 9
    script.respond(problem(429, "quota_exceeded", Retry_After="3600"))
    with pytest.raises(RateLimited) as raised:
        client.submit("chat", {})
    assert raised.value.retry_after_s == 3600
    assert raised.value.exit_code == ExitCode.BACKPRESSURE
    assert len(script.requests) == 3


def test_an_unsafe_request_is_retried_only_if_refused(client: Any, script: ScriptedGateway) -> None:
    script.respond(Reply())
    with pytest.raises(Broken) as raised:
        client.redrive(everything=True)
    assert raised.value.outcome_unknown
    assert len(script.requests) == 1
    script.respond(
        problem(503, "store_unavailable", Retry_After="0"),
        answer(200, {"redriven": [], "skipped": [], "dry_run": False}),
    )
    assert client.redrive(everything=True).redriven == []


def test_connections_are_reused_and_closed_ones_replaced(
    connect: Connect, script: ScriptedGateway
) -> None:
    script.respond(*[answer(200, job(), keep=True)] * 5, Reply(), answer(200, job()))
    client = connect(script.url, retries=1)
    for _ in range(5):
        assert client.job("j1").get().ended
    assert script.connections == 1
    assert client.job("j1").get().ended


def test_refusal_during_a_long_upload(connect: Connect, script: ScriptedGateway) -> None:
    """Linux buffers at most 4 MB of unsent data, so the client is still sending."""
    refusal = problem(413, "payload_too_large")
    script.respond(Reply(refusal.raw, early=True))
    with pytest.raises((Invalid, Broken)) as raised:
        connect(script.url, retries=0).submit("chat", {"text": "x" * 8_000_000})
    # The reset that follows may discard the response.
    assert isinstance(raised.value, Broken) or raised.value.code == "payload_too_large"


# -- error responses ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "kind", "exit_code"),
    [
        (400, "malformed_json", Invalid, ExitCode.USAGE),
        (422, "invalid_request", Invalid, ExitCode.USAGE),
        (401, "key_required", NotAllowed, ExitCode.AUTH),
        (403, "insufficient_scope", NotAllowed, ExitCode.AUTH),
        (404, "job_not_found", NotFound, ExitCode.NOT_FOUND),
        (410, "content_gone", NotFound, ExitCode.NOT_FOUND),
        (409, "job_terminal", Conflict, ExitCode.FAILED),
        (500, "internal_error", Refused, ExitCode.FAILED),
    ],
)
def test_status_codes_map_to_errors(
    connect: Connect,
    script: ScriptedGateway,
    status: int,
    code: str,
    kind: type[Refused],
    exit_code: ExitCode,
) -> None:
    script.respond(problem(status, code, "so it is"))
    with pytest.raises(kind) as raised:
        connect(script.url).job("j1").get()
    error = raised.value
    assert type(error) is kind
    assert (error.status, error.code, error.detail) == (status, code, "so it is")
    assert error.exit_code == exit_code
    assert error.problem["code"] == code
    assert f"{status} so it is" in str(error)
    assert len(script.requests) == 1


def test_messages_of_errors_say_what_to_do(client: Any, script: ScriptedGateway) -> None:
    first = "/ttl_s: too small"
    body = {"detail": f"The request does not fit. {first}", "errors": [{"pointer": "/ttl_s"}]}
    body["errors"] = [{"pointer": "/ttl_s", "detail": "too small"}]
    script.respond(answer(422, body))
    with pytest.raises(Invalid) as invalid:
        client.submit("chat", {}, ttl_s=0)
    assert str(invalid.value).count(first) == 1
    script.respond(problem(401, "key_required", "An API key is required."))
    remedy = r"\. Set the API key in SLUICE_API_KEY\.$"
    with pytest.raises(NotAllowed, match=f"is required{remedy}"):
        client.job("j1").get()
    script.respond(answer(401))  # of a proxy
    with pytest.raises(NotAllowed, match=f"401 Unauthorized{remedy}"):
        client.job("j1").get()
    script.respond(answer(404, {"detail": "Gone.", "instance": "/v1/jobs/j1"}))
    with pytest.raises(NotFound, match=r"Gone\. \(/v1/jobs/j1\)"):
        client.job("j1").get()


def test_workflow_errors_have_a_code(client: Any, script: ScriptedGateway) -> None:
    fault = {"code": "unknown_step", "message": "There is no such step.", "field": "step"}
    script.respond(answer(422, {"success": False, "errors": [fault]}))
    with pytest.raises(Invalid) as raised:
        client.workflows.execute("wf_1", "dance")
    assert (raised.value.code, raised.value.detail) == ("unknown_step", "There is no such step.")


def test_invalid_member_is_in_the_message(client: Any, script: ScriptedGateway) -> None:
    errors = [{"pointer": "/ttl_s", "detail": "too small"}]
    script.respond(answer(422, {"code": "invalid_request", "detail": "No.", "errors": errors}))
    with pytest.raises(Invalid, match=r"No\. /ttl_s: too small"):
        client.submit("chat", {}, ttl_s=0)


def test_request_in_progress_is_retried(client: Any, script: ScriptedGateway) -> None:
    busy = problem(409, "request_in_progress", Retry_After="0")
    cancelled = {"job_id": "wf_1", "workflow": "w", "status": "cancelled", "progress": 0.1}
    script.respond(busy, answer(200, {"success": True, "job": cancelled}))
    assert client.workflows.cancel("wf_1").status == "cancelled"


# -- not a gateway --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(b"nonsense\r\n\r\n"), BadAnswer),
        (Reply(b"\x00\xff\xfe" * 50), BadAnswer),
        (Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<html>hi\n"), BadAnswer),
        (answer(200, []), BadAnswer),
        (answer(200, {"job_id": 7}), BadAnswer),
        (answer(200, {"job_id": "j1"}), BadAnswer),
        (answer(200, job(created_ts="yesterday")), BadAnswer),
        (answer(200, job(error="text")), BadAnswer),
        (answer(200, None), BadAnswer),
        (answer(302, None, Location="http://127.0.0.1:1/login"), BadAnswer),
        (Reply(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}"), SluiceError),
        (Reply(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}"), SluiceError),
        (Reply(b"HTTP/1.1 200 OK\r\nConte"), SluiceError),
        (Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", reset=True), SluiceError),
    ],
)
def test_invalid_and_truncated_responses(
    connect: Connect, script: ScriptedGateway, reply: Reply, kind: type[SluiceError]
) -> None:
    script.respond(reply)
    with pytest.raises(kind) as raised:
        connect(script.url, retries=0).job("j1").get()
    assert raised.value.exit_code == ExitCode.UNREACHABLE


def test_no_connection_or_no_response(connect: Connect, script: ScriptedGateway) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match="sluice up") as raised:
        connect(url, retries=1).job("j1").get()
    assert url in str(raised.value)
    assert not isinstance(raised.value, Broken)
    with pytest.raises(Unreachable):
        connect("http://no-such-host.invalid:1", retries=0).whoami()
    script.respond(Reply(hang=True))
    with pytest.raises(Broken, match="in time"):
        connect(script.url, retries=0, timeout_s=0.2).job("j1").get()


@pytest.mark.parametrize(
    ("url", "key", "named"),
    [
        *(
            (url, None, "SLUICE_")
            for url in ("gateway:8080", "ftp://x", "http://", "http://x:port")
        ),
        *((url, None, "SLUICE_") for url in ("http://x/?a", "http://a:b@x")),
        *(("http://localhost", key, "SLUICE_API_KEY") for key in ("a b", "ä", "a\r\nX-Evil: 1")),
    ],
)
def test_an_invalid_url_or_key_is_named(
    connect: Connect, url: str, key: str | None, named: str
) -> None:
    with pytest.raises(Misconfigured, match=named):
        connect(url, key)


def test_url_and_key_from_the_environment(
    connect: Connect, script: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_URL", f"{script.url}/below/")
    monkeypatch.setenv("SLUICE_API_KEY", " sluice_key \n")
    for name in ("http_proxy", "HTTP_PROXY"):  # ignored
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    script.respond(answer(200, job()))
    connect(None).job("../x y?").get()
    [request] = script.requests
    assert request.path == "/below/v1/jobs/..%2Fx%20y%3F"
    assert request.headers["authorization"] == "Bearer sluice_key"


def test_api_key_is_not_sent_to_the_object_store(connect: Connect, script: ScriptedGateway) -> None:
    store = ScriptedGateway()
    try:
        script.respond(answer(307, None, Location=f"{store.url}/bucket/x.webp?sig=1"))
        store.respond(Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nRIFF"))
        client = connect(script.url, "sluice_key")
        assert client.images.content("i1") == b"RIFF"
        [request] = store.requests
        assert request.path == "/bucket/x.webp?sig=1"
        assert "authorization" not in request.headers
        assert script.requests[0].headers["authorization"] == "Bearer sluice_key"
    finally:
        store.close()


def test_tls_requires_a_trusted_certificate(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    script = ScriptedGateway(tls=authority.server("localhost"))
    try:
        with pytest.raises(Unreachable, match="certificate"):
            connect(script.url, retries=0).job("j1").get()
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        script.respond(answer(200, job()), stream(event("1-0", "done")))
        client = connect(script.url, retries=0)
        assert client.job("j1").get().ended
        assert [each.id for each in client.job("j1").stream()] == ["1-0"]
    finally:
        script.close()


def test_listing_with_a_repeated_cursor_ends(client: Any, script: ScriptedGateway) -> None:
    script.respond(*[answer(200, {"jobs": [], "next": "c"})] * 5)
    with pytest.raises(BadAnswer, match="end"):
        list(client.jobs())
    assert len(script.requests) == 2


# -- streams -------------------------------------------------------------------------------


def test_stream_resumes_after_the_last_event(client: Any, script: ScriptedGateway) -> None:
    script.respond(
        stream(HELLO, event("1-0", "queued"), event("2-0", "running"), cut=True),
        Reply(),
        problem(503, "store_unavailable", Retry_After="0"),
        stream(HELLO, event("2-1", "message", {"text": "a"})[:-9], cut=True),
        stream(HELLO, event("2-1", "message", {"text": "a"}), reset=True),
        stream(HELLO, event("3-0", "message", {"text": "b"})),  # ended normally: maximum age
        stream(HELLO, event("4-0", "done", {"ms": 1}), hang=True),
    )
    messages: list[str] = []
    events = list(client.job("j1").stream(notify=messages.append))
    assert [each.id for each in events] == ["1-0", "2-0", "2-1", "3-0", "4-0"]
    assert [each.text for each in events] == ["", "", "a", "b", ""]
    assert events[-1].terminal
    resumed = [request.headers.get("last-event-id") for request in script.requests]
    assert resumed == [None, "2-0", "2-0", "2-0", "2-0", "2-1", "3-0"]
    assert messages
    assert all("reconnecting" in message for message in messages)


@pytest.mark.parametrize(
    ("replies", "from_id", "events"),
    [
        (
            [
                stream(event("1-0", "queued"), event("9-0", "running"), cut=True),
                stream(event("1-0", "queued"), event("9-0", "running"), event("10-0", "done")),
            ],
            [],
            ["1-0 queued", "9-0 running", "10-0 done"],
        ),
        ([stream(event("5-0", "done"))], ["4-0"], ["5-0 done"]),
        ([answer(204)], ["4-0"], []),
        (
            [stream(HELLO, event("1-0", "queued"), event("", "gone", {"detail": "expired"}))],
            [],
            ["1-0 queued", " gone"],
        ),
        (
            [
                stream(event("1-0", "queued"), event("", "shutdown", {}, retry_ms=2)),
                stream(event("2-0", "done")),
            ],
            [],
            ["1-0 queued", "2-0 done"],
        ),
    ],
    ids=["repeated", "from-id", "ended", "gone", "shutdown"],
)
def test_events_of_a_stream(
    client: Any, script: ScriptedGateway, replies: Any, from_id: list[str], events: list[str]
) -> None:
    script.respond(*replies)
    found = [f"{each.id} {each.type}" for each in client.job("j1").stream(*from_id)]
    assert found == events
    assert [script.requests[0].headers.get("last-event-id")] == (from_id or [None])


def test_gap_and_text_events(client: Any, script: ScriptedGateway) -> None:
    gap = event("", "gap", {"from": "1-0", "to": "5-0"})
    text = b"id: 6-0\nevent: message\ndata: <b>\ndata: hi\n\n"
    script.respond(stream(HELLO, gap, text, event("7-0", "done")))
    first, second, last = client.job("j1").stream()
    assert (first.type, first.data, first.id) == ("gap", {"from": "1-0", "to": "5-0"}, "")
    assert (second.type, second.data, second.text) == ("message", "<b>\nhi", "")
    assert last.type == "done"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (problem(404, "job_not_found"), NotFound),
        (Reply(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>"), BadAnswer),
        (stream(b"data: " + b"x" * 5000), BadAnswer),
    ],
    ids=["unknown", "html", "endless"],
)
def test_invalid_streams_are_rejected(
    client: Any,
    script: ScriptedGateway,
    monkeypatch: pytest.MonkeyPatch,
    reply: Reply,
    error: type[SluiceError],
) -> None:
    monkeypatch.setattr("sluice.transport.sse.MAX_EVENT_BYTES", 1000)
    script.respond(reply)
    with pytest.raises(error):
        list(client.job("j1").stream())


def test_reconnecting_is_limited(
    client: Any, script: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "SILENCE_S", 5.0)
    monkeypatch.setattr(
        event_stream.EventStream.__init__, "__kwdefaults__",
        {**event_stream.EventStream.__init__.__kwdefaults__, "reconnect_for_s": 0.2},
    )  # fmt: skip
    script.respond(stream(event("1-0", "queued"), cut=True))
    events = client.job("j1").stream()
    assert next(events).id == "1-0"
    with pytest.raises(Unreachable):
        next(events)


def test_closing_the_iterator_closes_the_connection(client: Any, script: ScriptedGateway) -> None:
    script.respond(stream(event("1-0", "queued"), hang=True))
    events = client.job("j1").stream()
    assert next(events).id == "1-0"
    events.close()


# -- waits ---------------------------------------------------------------------------------


def test_wait_survives_errors(connect: Connect, script: ScriptedGateway) -> None:
    script.respond(Reply(), problem(503, "store_unavailable", Retry_After="0"), answer(200, job()))
    assert connect(script.url, retries=0).job("j1").wait(30).ended
    assert script.requests[-1].headers["prefer"].startswith("wait=")


def test_wait_polls_at_a_limited_rate(
    client: Any, script: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.api.jobs.POLL_S", 0.2)
    script.respond(*[answer(200, job("running"))] * 50)
    started = time.monotonic()
    with pytest.raises(WaitTimeout, match="running") as raised:
        client.job("j1").wait(0.3)
    assert raised.value.exit_code == ExitCode.TIMEOUT
    assert 0.28 < time.monotonic() - started < 10
    assert len(script.requests) <= 4


def test_wait_timeout_limits_retries(connect: Connect) -> None:
    started = time.monotonic()
    with pytest.raises(Unreachable):
        connect(f"http://127.0.0.1:{free_port()}").job("j1").wait(0.3)
    assert time.monotonic() - started < 10


# -- audits --------------------------------------------------------------------------------


REPORT = {"type": "report", "jobs_checked": 2, "violations_total": 1, "duration_ms": 3}
VIOLATION = {"type": "violation", "job_id": "j1", "rule": "no_ttl", "detail": "d"}


def test_audit_lines_are_reported(client: Any, script: ScriptedGateway) -> None:
    script.respond(
        json_lines({"type": "progress", "jobs_checked": 1}, VIOLATION, {"type": "new"}, REPORT)
    )
    received: list[str] = []
    report = client.audit(lambda line: received.append(line["type"]))
    assert received == ["progress", "violation", "new", "report"]
    assert (report.jobs_checked, report.violations_total) == (2, 1)
    assert [(each.job_id, each.rule) for each in report.violations] == [("j1", "no_ttl")]


@pytest.mark.parametrize(
    "reply",
    [
        json_lines({"type": "progress", "jobs_checked": 1}),
        json_lines({"type": "failed", "detail": "Redis is away"}),
        json_lines([]),
        json_lines({"type": "violation"}),
        json_lines({**REPORT, "jobs_checked": "two"}),
        Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n<html>"),
        Reply(),
    ],
)
def test_failed_audits(client: Any, script: ScriptedGateway, reply: Reply) -> None:
    script.respond(reply)
    with pytest.raises(SluiceError) as raised:
        client.audit()
    assert raised.value.exit_code == ExitCode.UNREACHABLE
    assert len(script.requests) == 1


def test_backoff_grows_to_a_maximum() -> None:
    backoff = retry.Backoff(jitter=lambda: 1.0)
    pauses = [backoff.pause_s() for _ in range(6)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == retry.LONGEST_PAUSE_S
    backoff.reset()
    assert backoff.pause_s() == retry.FIRST_PAUSE_S


def test_slow_response_is_not_requested_twice(connect: Connect, script: ScriptedGateway) -> None:
    unused = answer(200, job())
    script.respond(answer(200, job(), keep=True), Reply(hang=True), unused)
    client = connect(script.url, retries=0)
    client.job("j1").get()
    inner: Any = getattr(client, "inner", client)
    inner.transport._timeout_s = 0.3  # only for the second request; the first must succeed
    with pytest.raises(Broken, match="in time"):
        client.job("j1").get()
    wait_until(lambda: len(script.requests) > 1)
    assert len(script.requests) == 2
    assert script.replies == [unused], "no third request"


def test_threads_race_for_an_idle_connection(script: ScriptedGateway) -> None:
    class RacingList(list[Any]):
        """Reports an element that another thread has already removed."""

        def __len__(self) -> int:
            return 1

    script.respond(answer(200, job()))
    with Sluice(script.url) as client:
        client.transport._idle = RacingList()
        assert client.job("j1").get().status == "done"

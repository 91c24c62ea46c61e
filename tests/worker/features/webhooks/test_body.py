"""Body, signature and retry delays of webhooks."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest

from tests.worker.features.webhooks.kit import HookScene
from worker.features.webhooks.delivery import RetryPolicy
from worker.features.webhooks.request import build_callback, make_event_id, request_headers
from worker.features.webhooks.sender import result_for_status

JOB = "wf_20260214_001"


def entry(**changes: object) -> bytes:
    members: dict[str, object] = {
        "ts": 1_771_083_600_999,
        "seq": 7,
        "data": '{"step": "index_extract", "summary": "…", "count": 1}',
        "type": "step.completed",
        "current_step": "index_extract",
        "status": "running",
    }
    return json.dumps({**members, **changes}).encode()


def test_the_body_follows_the_contract() -> None:
    callback = build_callback(JOB, "memory_first_v2", entry())
    digest = hashlib.sha256(f"{JOB}|step.completed|7".encode()).hexdigest()[:8]
    assert callback.event_id == f"{JOB}:step.completed:{digest}"
    assert callback.event_type == "step.completed"
    assert callback.body.decode() == (
        f'{{"event_id":"{JOB}:step.completed:{digest}","event_type":"step.completed",'
        f'"job_id":"{JOB}","workflow":"memory_first_v2","status":"running",'
        '"current_step":"index_extract",'
        '"payload":{"step":"index_extract","summary":"…","count":1},'
        '"emitted_at":"2026-02-14T15:40:00Z"}'
    )


def test_the_body_is_deterministic_and_ids_are_unique() -> None:
    assert build_callback(JOB, "w", entry()) == build_callback(JOB, "w", entry())
    names = {
        make_event_id(job, kind, seq)
        for job in (JOB, "wf_20260214_002")
        for kind in ("step.completed", "step.started")
        for seq in (1, 2)
    }
    assert len(names) == 8


def test_numbers_beyond_64_bits_are_kept() -> None:
    callback = build_callback(JOB, "w", entry(data='{"big": 123456789012345678901234567890}'))
    assert b'"payload":{"big":123456789012345678901234567890}' in callback.body


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"1", b"{}", entry(seq=None), entry(ts="x"), entry(data="{"),
     entry(ts=10**30)],
)  # fmt: skip
def test_invalid_entries_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        build_callback(JOB, "w", raw)


async def test_a_callback_is_built_from_an_entry_of_the_script(fake_hooks: HookScene) -> None:
    job_id = await fake_hooks.job("http://127.0.0.1:9/")
    taken = await fake_hooks.claim(job_id)
    assert taken is not None
    event = json.loads(build_callback(job_id, taken.workflow, taken.content).body)
    assert event.pop("emitted_at").endswith("Z")
    assert event == {
        "event_id": make_event_id(job_id, "job.created", 1),
        "event_type": "job.created",
        "job_id": job_id,
        "workflow": "memory_first_v2",
        "status": "queued",
        "current_step": "sources",
        "payload": {"metadata": {}},
    }


def test_headers_with_and_without_a_secret() -> None:
    body = b'{"x":1}'
    signed = request_headers(body, b"key", 1_771_083_600)
    assert signed["X-Workflow-Event"] == "job_callback"
    assert signed["X-Workflow-Timestamp"] == "1771083600"
    assert signed["X-Workflow-Signature-Version"] == "v1"
    digest = hmac.new(b"key", b"1771083600." + body, hashlib.sha256).hexdigest()
    assert signed["X-Workflow-Signature"] == f"sha256={digest}"
    assert signed["Content-Type"] == "application/json"
    plain = request_headers(body, b"", 1_771_083_600)
    signed.pop("X-Workflow-Signature")
    assert plain == signed


def test_delays_are_exponential_with_jitter_up_to_the_cap() -> None:
    least = RetryPolicy(5, 1.0, 60.0, jitter=lambda: 0.0)
    most = RetryPolicy(5, 1.0, 60.0, jitter=lambda: 1.0)
    assert [least.delay_s(n) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [most.delay_s(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert most.delay_s(100_000) == 60


def test_retry_after_only_increases_the_delay() -> None:
    retries = RetryPolicy(5, 1.0, 60.0, jitter=lambda: 0.0)
    assert retries.delay_s(1, 7.0) == 7.0
    assert retries.delay_s(1, 0.0) == 0.5
    assert retries.delay_s(1, 3600.0) == 60.0


def test_retries_end() -> None:
    assert [RetryPolicy(2, 1, 1).allows_retry(attempt) for attempt in (1, 2, 3)] == [
        True,
        True,
        False,
    ]
    assert not RetryPolicy(0, 1, 1).allows_retry(1)


@pytest.mark.parametrize(
    ("status", "ok", "retryable"),
    [(200, True, False), (204, True, False), (299, True, False), (301, False, False),
     (304, False, False), (400, False, False), (404, False, False), (408, False, False),
     (410, False, False), (429, False, True), (500, False, True), (501, False, True),
     (503, False, True), (599, False, True), (999, False, True)],
)  # fmt: skip
def test_only_429_and_5xx_are_retryable(status: int, ok: bool, retryable: bool) -> None:
    attempted = result_for_status(status)
    assert (attempted.ok, attempted.retryable) == (ok, retryable)


def test_retry_after_in_either_form() -> None:
    assert result_for_status(503, "120").retry_after_s == 120
    assert result_for_status(429, "Wed, 21 Oct 2015 07:28:00 GMT").retry_after_s == 0
    for nonsense in ("soon", "nan", "", None):
        assert result_for_status(429, nonsense).retry_after_s is None
    assert result_for_status(400, "120").retry_after_s is None

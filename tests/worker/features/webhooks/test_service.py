"""Deliveries end to end: in order, once, despite receivers that fail, hang or are gone."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from pathlib import Path

import pytest

from sluice.common.contracts.webhooks import RedriveStatus
from sluice.worker.features.webhooks import service as service_module
from sluice.worker.features.webhooks.request import make_event_id, signature
from tests.support.waiting import eventually
from tests.support.webhook_receiver import HANG, Answer, ReceivedRequest
from tests.support.worker.webhooks import SECRET, WebhookHarness


def is_signed(got: ReceivedRequest) -> bool:
    stamp = int(got.headers["x-workflow-timestamp"])
    return got.headers["x-workflow-signature"] == signature(got.body, SECRET.encode(), stamp)


async def test_events_of_a_job_arrive_in_order(hooks: WebhookHarness) -> None:
    server, job_id = await hooks.delivered(events=6)
    events = [got.event for got in server.got]
    assert [event["event_type"] for event in events] == ["job.created", *["step.completed"] * 5]
    assert [event["payload"].get("count") for event in events] == [None, 2, 3, 4, 5, 6]
    assert events[0].pop("emitted_at").endswith("Z")
    assert events[0] == {
        "event_id": make_event_id(job_id, "job.created", 1), "event_type": "job.created",
        "job_id": job_id, "workflow": "memory_first_v2", "status": "queued",
        "current_step": "sources", "payload": {"metadata": {}},
    }  # fmt: skip
    assert len({got.event_id for got in server.got}) == 6
    assert await hooks.webhook_state(job_id) == "ok"
    assert all(is_signed(got) for got in server.got)


async def test_a_failed_delivery_is_retried_with_the_same_bytes(
    hooks: WebhookHarness, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        server, job_id = await hooks.delivered(500, 503, 200, events=2)
    first, second, third, later = server.got
    assert first.body == second.body == third.body
    assert later.event["payload"] == {"step": "sources", "count": 2}
    assert await hooks.webhook_state(job_id) == "ok"
    [reading] = hooks.readings()
    assert (reading.delivered, reading.retried, reading.failed) == (2, 2, 0)
    assert hooks.lines() == []
    assert f"webhook {first.event_id}: HTTP 500; attempt 1 of 6" in caplog.text
    assert job_id in first.event_id


@pytest.mark.fakeredis_only
async def test_retry_after_delays_the_next_attempt(hooks: WebhookHarness) -> None:
    server, _ = await hooks.delivered(Answer(429, {"Retry-After": "0.4"}), 200)
    first, second = server.got
    assert 0.38 <= second.at - first.at < 10


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(("status", "retries"), [(400, True), (301, True), (500, False)])
async def test_permanent_failures_are_dead_lettered_at_once(
    hooks: WebhookHarness, status: int, retries: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = await hooks.delivered(
        status, 200, events=2, workflow_webhook_enable_retries=retries
    )
    assert len(server.got) == 2  # the second is the next event
    [line] = hooks.lines()
    assert line["attempts"] == 1
    assert line["attempts_detail"][0]["status"] == status
    assert [reading.failed for reading in hooks.readings()] == [1]
    event_id = server.got[0].event_id
    assert f"webhook {event_id}: dead-lettered after 1 attempt" in caplog.text


async def test_the_file_line_and_the_dead_letter(hooks: WebhookHarness) -> None:
    server, job_id = await hooks.delivered(500, workflow_webhook_max_retries=2)
    assert len(server.got) == 3
    [line] = hooks.lines()
    assert list(line) == [
        "event_id", "event_type", "job_id", "url", "failed_at", "payload", "attempts",
        "attempts_detail", "replay",
    ]  # fmt: skip
    assert line["event_id"] == server.got[0].event_id
    about = ("job.created", job_id, server.url())
    assert (line["event_type"], line["job_id"], line["url"]) == about
    assert line["payload"] == server.got[0].event
    assert line["attempts"] == 3
    details = line["attempts_detail"]
    assert [(each["attempt"], each["status"], each["retryable"]) for each in details] == [
        (1, 500, True), (2, 500, True), (3, 500, True),
    ]  # fmt: skip
    assert all(each["error"] == "HTTP 500" and each["at"].endswith("Z") for each in details)
    replay = line["replay"]
    assert base64.b64decode(replay["body_base64"]) == server.got[0].body
    assert (replay["method"], replay["url"], replay["encoding"]) == ("POST", server.url(), "utf-8")
    assert "X-Workflow-Signature" not in replay["headers"]
    assert SECRET not in hooks.file.read_text()
    [letter] = await hooks.letters.list_dead_letters(10)
    assert letter.dead_letter.body == server.got[0].body
    assert json.loads(letter.dead_letter.detail) == details
    assert await hooks.webhook_state(job_id) == "failed"


@pytest.mark.fakeredis_only
async def test_without_the_file_the_dead_letter_is_still_written(
    hooks: WebhookHarness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("")
    await hooks.delivered(400, workflow_webhook_dlq_path=str(tmp_path / "taken" / "x.jsonl"))
    assert await hooks.letters.count() == 1
    assert "WORKFLOW_WEBHOOK_DLQ_PATH" in caplog.text


async def test_a_redrive_is_delivered_once_byte_for_byte(hooks: WebhookHarness) -> None:
    server, job_id = await hooks.delivered(400, 404, 500, 200)
    [event_id] = await hooks.letters.event_ids()
    await hooks.redrive(event_id)  # it fails again
    await hooks.all_sent()
    assert await hooks.letters.count() == 1
    for _ in range(3):
        await hooks.redrive(event_id)
    await hooks.all_sent()
    assert (len(server.got), len({got.body for got in server.got})) == (4, 1)
    assert is_signed(server.got[-1])
    _, failed, outcome = hooks.lines()
    assert list(outcome) == ["redriven_at", "event_id", "ok"]
    assert (failed["ok"], outcome["event_id"], outcome["ok"]) == (False, event_id, True)
    assert (await hooks.redrive(event_id)).facts["skipped"] == [event_id]
    await hooks.all_sent()
    assert len(server.got) == 4
    [letter] = await hooks.letters.list_dead_letters(10)
    assert letter.redrive is RedriveStatus.OK
    assert await hooks.webhook_state(job_id) == "ok"


@pytest.mark.fakeredis_only
async def test_a_slow_receiver_delays_no_others(hooks: WebhookHarness) -> None:
    hanging, sound = await hooks.receiver(HANG), await hooks.receiver()
    await hooks.service(workflow_webhook_timeout_seconds=60.0)
    for _ in range(20):  # more than there are slots, and all of them first
        await hooks.job(hanging.url())
    jobs = [await hooks.job(sound.url()) for _ in range(6)]

    async def delivered() -> bool:
        return [await hooks.webhook_state(job_id) for job_id in jobs] == ["ok"] * 6

    await eventually(delivered, 20)
    assert hanging.active["/"] == 4  # half of the eight slots


@pytest.mark.fakeredis_only
async def test_many_deliveries_to_a_slow_receiver_do_not_starve_others(
    hooks: WebhookHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "PAGE_SIZE", 2)
    monkeypatch.setattr(service_module, "MOST_PAGES", 2)
    hanging, sound = await hooks.receiver(HANG), await hooks.receiver()
    service = await hooks.service(
        run=False, workflow_webhook_parallel=2, workflow_webhook_timeout_seconds=60.0
    )
    for number in range(10):
        job_id = await hooks.job(hanging.url())
        await hooks.client.zadd(hooks.keys.deliveries, {job_id: 1 + number})
    last = await hooks.job(sound.url())
    await hooks.client.zadd(hooks.keys.deliveries, {last: 100})
    for _ in range(4):
        await service.run_once()
    await eventually(lambda: len(sound.got) == 1 and service.reading().under_way == 1)
    # Then those that have waited longest again.
    offsets: list[int] = []
    look = hooks.store.next_due

    async def counted(limit: int, offset: int = 0) -> object:
        offsets.append(offset)
        return await look(limit, offset)

    monkeypatch.setattr(hooks.store, "next_due", counted)
    for _ in range(4):
        await service.run_once()
    assert set(offsets) == {0, 2, 4, 6, 8}


async def test_many_workers_deliver_events_once(hooks: WebhookHarness) -> None:
    server = await hooks.receiver()
    for _ in range(3):
        await hooks.service()
    for number in range(6):
        job_id = await hooks.job(server.url(f"/{number}"))
        await hooks.add_events(job_id, 3)
    await hooks.all_sent()
    assert len(server.got) == 24
    assert len({got.event_id for got in server.got}) == 24
    for number in range(6):
        counts = [got.event["payload"].get("count") for got in server.at(f"/{number}")]
        assert counts == [None, 2, 3, 4]


async def test_an_expired_lease_is_delivered_by_another_worker(hooks: WebhookHarness) -> None:
    server = await hooks.receiver()
    job_id = await hooks.job(server.url())
    await hooks.claimed(job_id, lease_ms=600)  # by a worker that crashed
    began = time.monotonic()
    await hooks.service()
    await hooks.all_sent()
    assert time.monotonic() - began > 0.3
    assert [got.event_id for got in server.got] == [make_event_id(job_id, "job.created", 1)]


async def test_a_new_event_is_noticed_at_once(
    hooks: WebhookHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "IDLE_S", 60.0)
    server, job_id = await hooks.delivered()
    await hooks.add_events(job_id, 1)
    await eventually(lambda: len(server.got) == 2, 20)
    assert [reading.failed for reading in hooks.readings()] == [0]


@pytest.mark.fakeredis_only
async def test_without_the_channel_events_are_polled(
    hooks: WebhookHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(*_: object) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(service_module, "keep_subscribed", deaf)
    monkeypatch.setattr(service_module, "IDLE_S", 0.1)
    server = await hooks.receiver()
    await hooks.service()
    await hooks.job(server.url())
    await eventually(lambda: len(server.got) == 1)


@pytest.mark.slow("waits for polls once a second")
@pytest.mark.real_redis
async def test_an_idle_service_polls_about_once_a_second(
    hooks: WebhookHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    real = hooks.store.next_due

    async def counted(limit: int, offset: int = 0) -> object:
        asked.append(time.monotonic())
        return await real(limit, offset)

    monkeypatch.setattr(hooks.store, "next_due", counted)
    await hooks.service()
    await eventually(lambda: len(asked) >= 4)
    # The first polls are at the start and after subscribing.
    assert asked[-1] - asked[-2] > 0.7


@pytest.mark.fakeredis_only
async def test_invalid_outbox_entries_are_dropped(
    hooks: WebhookHarness, caplog: pytest.LogCaptureFixture
) -> None:
    server = await hooks.receiver()
    job_id = await hooks.job(server.url())
    await hooks.client.rpush(hooks.keys.outbox(job_id), "no json")
    await hooks.add_events(job_id, 1)
    await hooks.service()
    await hooks.all_sent()
    assert [got.event["event_type"] for got in server.got] == ["job.created", "step.completed"]
    assert "dropped" in caplog.text


@pytest.mark.fakeredis_only
async def test_a_no_longer_allowed_address_is_dead_lettered(hooks: WebhookHarness) -> None:
    server, _ = await hooks.delivered(workflow_webhook_allowed_hosts="")
    assert server.connections == 0
    [line] = hooks.lines()
    assert "not a public address" in line["attempts_detail"][0]["error"]


@pytest.mark.fakeredis_only
async def test_a_stopping_service_completes_running_deliveries(
    hooks: WebhookHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await hooks.receiver()
    job_id = await hooks.job(server.url())
    await hooks.run_once()
    assert len(server.got) == 1
    assert await hooks.webhook_state(job_id) == "ok"
    # After a stall another worker may have claimed the delivery: nothing is sent.
    await hooks.job(server.url())
    monkeypatch.setattr(service_module, "LEASE_MARGIN_S", -1.0)
    await hooks.run_once()
    assert len(server.got) == 1

"""Dead letters of webhooks over HTTP: listed page by page, redriven once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sluice.common.contracts.webhooks import DeliveryOutcome
from sluice.common.features.workflows.webhooks.dead_letters import (
    WebhookDeadLetter,
    WebhookDeadLetterStore,
)
from sluice.common.features.workflows.webhooks.store import WebhookStore
from sluice.common.observability.heartbeats import WebhooksReading
from tests.gateway.observability.metrics.test_metrics import beat, scrape
from tests.support.gateway.access import call, key_for
from tests.support.gateway.asgi import JSON, Answer
from tests.support.gateway.harness import Make
from tests.support.gateway.workflows import KEYS, Workflows, check_envelope

pytestmark = pytest.mark.fakeredis_only

DLQ = "/api/workflow/webhooks/dlq"
DELIVERIES = "/api/workflow/webhooks/deliveries"
NOTHING = {"count": 0, "has_more": False, "next_cursor": None, "total": 0}
URL = "http://127.0.0.1:9/hook"
DETAIL = {
    "attempt": 1,
    "status": 503,
    "error": "HTTP 503",
    "retryable": True,
    "at": "2026-02-14T15:40:00Z",
}


class WebhookDeadLetters:
    """The two routes, and the calls of a worker."""

    def __init__(self, workflows: Workflows) -> None:
        self.workflows = workflows
        state = workflows.gateway.state
        self.store = WebhookStore(state.client, workflows.gateway.workflows.store._batcher)

    async def add(self, count: int = 1) -> list[str]:
        """Write dead letters; returns their events, oldest first."""
        added = []
        for number in range(count):
            job_id = await self.workflows.create_job({"webhook_url": URL})
            [delivery] = await self.store.claim([job_id], 60_000)
            event_id = f"{job_id}:job.created:{number:08x}"
            body = json.dumps({"event_id": event_id, "payload": {"n": number}}).encode()
            detail = json.dumps([DETAIL]).encode()
            dead_letter = WebhookDeadLetter(event_id, "job.created", job_id, URL, 1, detail, body)
            await self.store.settle(delivery, DeliveryOutcome.DEAD, letter=dead_letter)
            added.append(event_id)
        return added

    async def end_redrive(self, event_id: str, becomes: Any = DeliveryOutcome.OK) -> None:
        [delivery] = await self.store.claim([event_id], 60_000)
        await self.store.settle(delivery, becomes)

    async def read(self, query: str = "") -> Any:
        return await self._get(f"{DLQ}{query}")

    async def deliveries(self, query: str = "") -> Any:
        return await self._get(f"{DELIVERIES}{query}")

    async def _get(self, target: str) -> Any:
        answer = await self.workflows.gateway.client.get(target)
        assert answer.status == 200, answer
        return answer.json()

    async def redrive(self, body: object, **headers: str) -> Answer:
        client = self.workflows.gateway.client
        return await client.send("POST", f"{DLQ}/redrive", {**JSON, **headers}, body)

    async def due(self) -> set[str]:
        names = await self.workflows.redis.zrange(KEYS.deliveries, 0, -1)
        return {name.decode() for name in names}


@pytest.fixture
async def dead_letters(make: Make) -> WebhookDeadLetters:
    return WebhookDeadLetters(Workflows(make(workflow_webhook_allowed_hosts="127.0.0.1")))


async def test_a_delivery_is_described(dead_letters: WebhookDeadLetters) -> None:
    empty = await dead_letters.deliveries()
    assert empty == {"success": True, "items": [], "total": 0, "pagination": NOTHING}
    job_id = await dead_letters.workflows.create_job({"webhook_url": URL})
    [item] = (await dead_letters.deliveries())["items"]
    assert item.pop("next_at").endswith("Z")
    new = {"under_way": False, "waiting": 1, "attempts": 0, "last": None}
    assert item == {"job_id": job_id, "event_id": None, "url": URL, **new}
    [delivery] = await dead_letters.store.claim([job_id], 60_000)
    [item] = (await dead_letters.deliveries())["items"]
    assert (item["under_way"], item["attempts"]) == (True, 1)
    detail = json.dumps(DETAIL).encode()
    await dead_letters.store.settle(delivery, DeliveryOutcome.RETRY, delay_ms=60_000, detail=detail)
    [item] = (await dead_letters.deliveries())["items"]
    assert (item["under_way"], item["attempts"], item["last"]) == (False, 1, DETAIL)


async def test_delivery_pages_list_each_delivery_once(dead_letters: WebhookDeadLetters) -> None:
    """Also if several are due in the same millisecond."""
    due = {"wf_1": 5, "wf_2": 6, "wf_3": 6, "wf_4": 6, "wf_5": 6, "wf_6": 7}
    await dead_letters.workflows.redis.zadd(KEYS.deliveries, due)
    for limit in (1, 2, 3, 6, 7):
        client = dead_letters.workflows.gateway.client
        pages = await client.pages(f"{DELIVERIES}?limit={limit}", "cursor")
        assert [item["job_id"] for page in pages for item in page["items"]] == list(due)
        for page in pages:
            assert page["pagination"]["count"] == len(page["items"]) > 0
            assert page["pagination"]["total"] == 6
            assert page["pagination"]["has_more"] is (page is not pages[-1])
    page = await dead_letters.deliveries("?limit=1&offset=1")
    assert [item["job_id"] for item in page["items"]] == ["wf_2"]
    assert page["pagination"]["next_cursor"] == "due_6_1"
    assert (await dead_letters.deliveries("?offset=6"))["items"] == []


async def test_invalid_entries_are_tolerated(dead_letters: WebhookDeadLetters) -> None:
    redis = dead_letters.workflows.redis
    await redis.zadd(KEYS.deliveries, {"wf_1": 5, "wf_2": 6, "\u202e<b>": 7})
    for key in (KEYS.job("wf_1"), KEYS.outbox("wf_1"), KEYS.delivery("wf_1")):
        await redis.set(key, "none")
    await redis.hset(KEYS.delivery("wf_2"), mapping={"attempt": "x", "detail": "{", "token": ""})
    items = (await dead_letters.deliveries())["items"]
    found = [(item["job_id"], item["attempts"], item["last"]) for item in items]
    assert found == [("wf_1", 0, None), ("wf_2", 0, None), ("\u202e<b>", 0, None)]
    await redis.xadd(KEYS.dead_letters, {"event_id": "e", "attempts_detail": "x", "body": "["})
    await redis.xadd(KEYS.dead_letters, {"nothing": "known", "attempts_detail": "[1]"})
    page = await dead_letters.read()
    assert [item["event_id"] for item in page["items"]] == ["", "e"]
    assert [item["attempts_detail"] for item in page["items"]] == [[], []]
    for key in (KEYS.deliveries, KEYS.dead_letters, KEYS.dead_letter_states):
        await redis.delete(key)
        await redis.set(key, "none")
    assert (await dead_letters.deliveries())["items"] == []
    assert (await dead_letters.read())["items"] == []
    assert (await dead_letters.redrive({"all": True})).json()["redriven"] == []


async def test_a_dead_letter_is_described(dead_letters: WebhookDeadLetters) -> None:
    assert await dead_letters.read() == {"success": True, "items": [], "pagination": NOTHING}
    answer = await dead_letters.redrive({"all": True})
    assert answer.json() == {"success": True, "redriven": [], "skipped": [], "errors": []}
    [event_id] = await dead_letters.add()
    [item] = (await dead_letters.read())["items"]
    assert item.pop("failed_at").endswith("Z")
    assert item == {
        "event_id": event_id,
        "event_type": "job.created",
        "job_id": event_id.partition(":")[0],
        "url": URL,
        "payload": {"event_id": event_id, "payload": {"n": 0}},
        "attempts": 1,
        "attempts_detail": [DETAIL],
        "redrive": {"status": "none", "at": None},
    }
    status = await dead_letters.workflows.status(event_id.partition(":")[0])
    assert status["webhook"]["last_delivery_status"] == "failed"
    assert (await dead_letters.deliveries())["total"] == 0
    await dead_letters.redrive({"all": True})
    [item] = (await dead_letters.deliveries())["items"]
    assert (item["event_id"], item["job_id"]) == (event_id, event_id.partition(":")[0])
    assert (item["url"], item["waiting"]) == (URL, 1)


async def test_pages_list_dead_letters_newest_first(dead_letters: WebhookDeadLetters) -> None:
    events = (await dead_letters.add(5))[::-1]
    first = await dead_letters.read("?limit=2")
    assert [item["event_id"] for item in first["items"]] == events[:2]
    page = first["pagination"]
    assert (page["count"], page["has_more"], page["total"]) == (2, True, 5)
    await dead_letters.add()  # new entries do not shift the pages
    second = await dead_letters.read(f"?limit=3&cursor={page['next_cursor']}")
    assert [item["event_id"] for item in second["items"]] == events[2:5]
    assert second["pagination"]["next_cursor"] is None
    by_offset = await dead_letters.read("?limit=2&offset=4")
    assert [item["event_id"] for item in by_offset["items"]] == events[3:5]


async def test_invalid_requests_are_rejected(dead_letters: WebhookDeadLetters) -> None:
    for body in (
        *({}, {"all": False}, {"event_ids": []}, {"event_ids": ["x"], "all": True}, []),
        *({"event_ids": "x"}, {"event_ids": [1]}, {"all": "yes"}, {"all": True, "more": 1}),
        *({"event_ids": ["x"] * 1001}, {"event_ids": ["x" * 257]}),
    ):
        check_envelope(await dead_letters.redrive(body), 422, "validation_error")
    for raw in (b"{", b""):
        check_envelope(await dead_letters.redrive(raw), 400, "invalid_json")


async def test_a_redrive_is_recorded_with_its_outcome(dead_letters: WebhookDeadLetters) -> None:
    first, second = await dead_letters.add(2)
    answers = await asyncio.gather(
        *(dead_letters.redrive({"event_ids": [first, first]}) for _ in range(8))
    )
    [answer] = [answer for answer in answers if answer.json()["redriven"]]
    assert answer.status == 200
    assert answer.json() == {"success": True, "redriven": [first], "skipped": [], "errors": []}
    assert await dead_letters.due() == {first}
    again = await dead_letters.redrive({"all": True})
    assert again.json()["redriven"] == [second]
    assert again.json()["skipped"] == [first]
    await dead_letters.end_redrive(first)
    await dead_letters.end_redrive(second, DeliveryOutcome.DEAD)
    items = {item["event_id"]: item for item in (await dead_letters.read())["items"]}
    assert items[first]["redrive"]["status"] == "ok"
    assert items[first]["redrive"]["at"].endswith("Z")
    assert items[second]["redrive"]["status"] == "failed"
    third = (await dead_letters.redrive({"all": True})).json()
    assert (third["redriven"], third["skipped"]) == ([second], [first])


async def test_redrive_all_skips_trimmed_dead_letters(
    dead_letters: WebhookDeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some may be trimmed between the list and the redrive."""
    [gone, left] = await dead_letters.add(2)
    event_ids = WebhookDeadLetterStore.event_ids

    async def read_late(self: WebhookDeadLetterStore) -> list[str]:
        found = await event_ids(self)
        await dead_letters.workflows.redis.hdel(KEYS.dead_letter_states, gone)
        return found

    monkeypatch.setattr(WebhookDeadLetterStore, "event_ids", read_late)
    answer = await dead_letters.redrive({"all": True})
    assert (answer.status, answer.json()["redriven"]) == (200, [left])
    assert await dead_letters.due() == {left}


async def test_unknown_events_are_rejected(dead_letters: WebhookDeadLetters) -> None:
    [event_id] = await dead_letters.add()
    unknown = ["wf_20260214_001:job.created:00000000", "x"]
    answer = await dead_letters.redrive({"event_ids": [event_id, *unknown]})
    envelope = check_envelope(answer, 404, "event_not_found")
    assert [error["item_id"] for error in envelope["errors"]] == unknown
    assert await dead_letters.due() == set()


async def test_a_repeated_request_gets_the_first_response(dead_letters: WebhookDeadLetters) -> None:
    [event_id] = await dead_letters.add()
    first = await dead_letters.redrive({"all": True}, idempotency_key="k")
    assert first.json()["redriven"] == [event_id]
    await dead_letters.end_redrive(event_id)
    await dead_letters.add()
    again = await dead_letters.redrive({"all": True, "idempotency_key": "k"})
    assert again.json() == first.json()
    assert again.header("idempotency-replayed") == "true"
    assert await dead_letters.due() == set()
    other = await dead_letters.redrive({"event_ids": [event_id]}, idempotency_key="k")
    check_envelope(other, 422, "idempotency_key_reused")


async def test_a_redrive_requires_admin_and_is_in_the_audit_log(make: Make) -> None:
    gateway = make(auth="required", workflow_webhook_allowed_hosts="127.0.0.1")
    admin = await key_for(gateway, scopes=("admin",))
    user = await key_for(gateway, scopes=("jobs:read", "jobs:write"))
    assert (await call(gateway, "POST", f"{DLQ}/redrive", user, {"all": True})).status == 403
    assert (await call(gateway, "POST", f"{DLQ}/redrive", admin, {"all": True})).status == 200
    audit_log = (await call(gateway, "GET", "/v1/trail", admin)).body.decode()
    assert "dlq.redrive" in audit_log
    assert "webhooks, all" in audit_log


async def test_delivery_counts_of_workers_are_published(dead_letters: WebhookDeadLetters) -> None:
    gateway = dead_letters.workflows.gateway
    reading = WebhooksReading(delivered=7, retried=2, failed=1, under_way=3)
    await gateway.heartbeat(beat("w1", webhooks=reading), beat("w2"))
    found = await scrape(gateway)
    for outcome, count in (("delivered", 7), ("retried", 2), ("failed", 1)):
        assert found.value("gw_webhooks_total", worker="w1", outcome=outcome) == count
    assert len(found.labels("gw_webhooks_total")) == 3
    [first, second] = (await gateway.client.get("/v1/workers", {})).json()["workers"]
    assert (first["webhooks"]["under_way"], second.get("webhooks")) == (3, None)

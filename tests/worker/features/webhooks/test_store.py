"""Claiming, settling and redriving deliveries: exclusive, in order and only once."""

from __future__ import annotations

import asyncio
import json

import pytest

from sluice.common.contracts.webhooks import DEAD_LETTERS_KEPT, DeliveryOutcome, RedriveStatus
from sluice.common.features.workflows.types import WorkflowAnswer
from sluice.common.features.workflows.webhooks.dead_letters import WebhookDeadLetter
from sluice.common.features.workflows.webhooks.store import ClaimedDelivery
from tests.support.store.jobs import Proxy
from tests.support.worker.webhooks import WebhookHarness

URL = "http://127.0.0.1:9/hook?key=1"
EVENT = "{job}:step.completed:0a1b2c3d"


def dead_letter_of(taken: ClaimedDelivery, event_id: str = "") -> WebhookDeadLetter:
    name = event_id or EVENT.format(job=taken.job_id)
    return WebhookDeadLetter(
        name, "step.completed", taken.job_id, taken.url, taken.attempt, b"[]", b'{"a":1}'
    )


async def seq_of(hooks: WebhookHarness, name: str) -> int:
    """Claim and deliver the due entry; returns its sequence number."""
    taken = await hooks.claimed(name)
    assert await hooks.store.settle(taken, DeliveryOutcome.OK) is WorkflowAnswer.OK
    return int(json.loads(taken.content)["seq"])


async def dead_ones(hooks: WebhookHarness, *names: str) -> tuple[str, list[str]]:
    """Dead letters of one job in this order; returns the job's id and the event ids."""
    job_id = await hooks.job(URL)
    await hooks.add_events(job_id, len(names) - 1)
    events = [f"{job_id}:{name}" for name in names]
    for event_id in events:
        taken = await hooks.claimed(job_id)
        letter = dead_letter_of(taken, event_id)
        await hooks.store.settle(taken, DeliveryOutcome.DEAD, letter=letter)
    return job_id, events


async def dead(hooks: WebhookHarness) -> str:
    """Create a dead letter; returns its event id."""
    _, [event_id] = await dead_ones(hooks, "step.completed:0a1b2c3d")
    return event_id


async def test_a_new_job_is_due_at_once_with_a_complete_entry(hooks: WebhookHarness) -> None:
    job_id = await hooks.job(URL)
    look = await hooks.store.next_due(10)
    [(name, url, at_ms)] = look.entries
    assert (name, url) == (job_id, URL)
    assert look.now_ms - 5000 < at_ms <= look.now_ms
    taken = await hooks.claimed(job_id)
    assert taken._replace(token="", content=b"") == ClaimedDelivery(
        job_id, "", 1, b"", URL, "memory_first_v2"
    )
    entry = json.loads(taken.content)
    assert (entry["seq"], entry["type"], entry["status"]) == (1, "job.created", "queued")
    assert json.loads(entry["data"]) == {"metadata": {}}
    assert not taken.is_redrive


async def test_a_claim_is_exclusive_until_its_lease_expires(hooks: WebhookHarness) -> None:
    job_id = await hooks.job(URL)
    taken = await hooks.claimed(job_id)
    assert await hooks.claim(job_id) is None
    await hooks.due_now(job_id)  # its worker crashed or was stopped
    other = await hooks.claimed(job_id)
    assert (other.content, other.attempt) == (taken.content, 2)
    for becomes in DeliveryOutcome:
        assert await hooks.store.settle(taken, becomes) is WorkflowAnswer.LOST
    assert await hooks.client.llen(hooks.keys.outbox(job_id)) == 1
    assert await hooks.store.settle(other, DeliveryOutcome.OK) is WorkflowAnswer.OK
    assert await hooks.nothing_due()


async def test_of_concurrent_claims_one_succeeds(hooks: WebhookHarness) -> None:
    jobs = [await hooks.job(URL) for _ in range(5)]
    found = await asyncio.gather(*(hooks.store.claim(jobs, 60_000) for _ in range(8)))
    assert sorted(each.name for taken in found for each in taken) == sorted(jobs)


async def test_entries_are_ordered_and_wait_for_a_retry(hooks: WebhookHarness) -> None:
    job_id = await hooks.job(URL)
    await hooks.add_events(job_id, 3)
    first = await hooks.claimed(job_id)
    settled = await hooks.store.settle(
        first, DeliveryOutcome.RETRY, delay_ms=60_000, detail=b'{"attempt":1}'
    )
    assert settled is WorkflowAnswer.OK
    assert await hooks.webhook_state(job_id) == "retrying"
    await hooks.add_events(job_id, 1, first=5)  # a new event does not make it due
    [(_, _, at_ms)] = (await hooks.store.next_due(10)).entries
    assert at_ms > (await hooks.store.next_due(10)).now_ms + 50_000
    assert await hooks.claim(job_id) is None
    await hooks.due_now(job_id)
    again = await hooks.claimed(job_id)
    assert (again.attempt, again.content, again.detail) == (2, first.content, b'{"attempt":1}')
    await hooks.store.settle(again, DeliveryOutcome.RETRY, detail=b'{"attempt":2}')
    third = await hooks.claimed(job_id)
    assert third.detail == b'{"attempt":1},{"attempt":2}'
    await hooks.store.settle(third, DeliveryOutcome.OK)
    assert await hooks.webhook_state(job_id) == "ok"
    fresh = await hooks.claimed(job_id)
    assert (fresh.attempt, fresh.detail, json.loads(fresh.content)["seq"]) == (1, b"", 2)
    await hooks.store.settle(fresh, DeliveryOutcome.OK)
    assert [await seq_of(hooks, job_id) for _ in range(3)] == [3, 4, 5]
    assert await hooks.nothing_due()


async def test_a_delivery_does_not_change_the_job(hooks: WebhookHarness) -> None:
    job_id = await hooks.job(URL)
    await hooks.add_events(job_id, 1)
    before = await hooks.record(job_id)
    await seq_of(hooks, job_id)
    after = await hooks.record(job_id)
    assert after.pop(b"webhook_status") == b"ok"
    assert int(after.pop(b"webhook_ms")) >= int(before[b"started_ms"])
    before.pop(b"webhook_status", None)
    before.pop(b"webhook_ms", None)
    assert after == before
    # An unreadable entry is dropped.
    unread = await hooks.job(URL)
    await hooks.store.settle(await hooks.claimed(unread), DeliveryOutcome.DROP)
    assert await hooks.webhook_state(unread) == ""
    assert await hooks.letters.count() == 0
    # Nothing is left of an expired job.
    await hooks.client.delete(hooks.keys.job(job_id))
    assert await hooks.claim(job_id) is None
    assert await hooks.nothing_due()
    assert not await hooks.client.exists(hooks.keys.outbox(job_id))


async def test_a_job_that_expires_meanwhile_is_not_recreated(hooks: WebhookHarness) -> None:
    job_id = await hooks.job(URL)
    taken = await hooks.claimed(job_id)
    await hooks.client.delete(hooks.keys.job(job_id), hooks.keys.outbox(job_id))
    assert await hooks.store.settle(taken, DeliveryOutcome.OK) is WorkflowAnswer.OK
    assert not await hooks.client.exists(hooks.keys.job(job_id))
    assert await hooks.nothing_due()


async def test_a_dead_letter_lets_the_next_entry_proceed(hooks: WebhookHarness) -> None:
    job_id = await hooks.job(URL)
    await hooks.add_events(job_id, 1)
    taken = await hooks.claimed(job_id)
    letter = dead_letter_of(taken)
    assert await hooks.store.settle(taken, DeliveryOutcome.DEAD, letter=letter) is WorkflowAnswer.OK
    assert await hooks.webhook_state(job_id) == "failed"
    [found] = await hooks.letters.list_dead_letters(10)
    assert found.dead_letter == letter
    assert found.redrive is RedriveStatus.NONE
    assert await hooks.letters.event_ids() == [letter.event_id]
    assert await seq_of(hooks, job_id) == 2
    assert (
        await hooks.store.settle(taken, DeliveryOutcome.DEAD, letter=letter) is WorkflowAnswer.LOST
    )
    assert await hooks.letters.count() == 1


@pytest.mark.real_redis
@pytest.mark.one_server
async def test_every_call_is_idempotent(hooks: WebhookHarness) -> None:
    """Replies can be lost with their connection although the call was executed."""
    job_id = await hooks.job(URL)
    await hooks.add_events(job_id, 1)
    assert hooks.backend.url is not None
    async with Proxy(hooks.backend.url) as proxy:
        far = WebhookHarness(
            type(hooks.backend)("proxied", proxy.url), hooks.jobs, hooks.file.parent
        )
        try:
            await far.client.ping()
            assert await far.claim("wf_20260101_001") is None  # connects
            proxy.lose_replies = 1
            taken = await far.claimed(job_id)
            assert taken.attempt == 1
            proxy.lose_replies = 1
            settled = await far.store.settle(
                taken, DeliveryOutcome.DEAD, letter=dead_letter_of(taken)
            )
            assert settled is WorkflowAnswer.ALREADY
            assert await hooks.letters.count() == 1
            assert await hooks.client.llen(hooks.keys.outbox(job_id)) == 1
        finally:
            await far.close()
            await far.backend.close()


async def test_dead_letters_are_capped(hooks: WebhookHarness) -> None:
    async with hooks.client.pipeline(transaction=False) as pipe:
        for number in range(1, DEAD_LETTERS_KEPT + 1):
            name = f"old:{number}"
            pipe.xadd(hooks.keys.dead_letters, {"event_id": name}, id=f"{number}-0")
            pipe.hset(hooks.keys.dead_letter_states, name, f"{number}-0 none 1 {URL}")
        await pipe.execute()
    await dead(hooks)
    assert await hooks.letters.count() == DEAD_LETTERS_KEPT
    known = await hooks.letters.event_ids()
    assert len(known) == DEAD_LETTERS_KEPT
    assert "old:1" not in known
    outcome = await hooks.redrive("old:1")
    assert outcome.answer is WorkflowAnswer.MISSING


async def test_a_redrive_sends_the_same_bytes_once(hooks: WebhookHarness) -> None:
    event_id = await dead(hooks)
    outcome = await hooks.redrive(event_id)
    assert outcome.answer is WorkflowAnswer.OK
    assert outcome.facts["redriven"] == [event_id]
    under_way = await hooks.redrive(event_id)
    assert list(under_way.facts["redriven"]) == []
    assert under_way.facts["skipped"] == [event_id]
    [(name, url, _)] = (await hooks.store.next_due(10)).entries
    assert (name, url) == (event_id, URL)
    taken = await hooks.claimed(event_id)
    assert taken.is_redrive
    assert (taken.content, taken.url, taken.attempt) == (b'{"a":1}', URL, 1)

    async def state() -> RedriveStatus:
        [found] = await hooks.letters.list_dead_letters(10)
        return found.redrive

    await hooks.store.settle(taken, DeliveryOutcome.DEAD)
    assert await state() is RedriveStatus.FAILED
    assert await hooks.letters.count() == 1
    assert (await hooks.redrive(event_id)).facts["redriven"] == [event_id]
    taken = await hooks.claimed(event_id)
    assert taken.attempt == 1
    await hooks.store.settle(taken, DeliveryOutcome.RETRY, detail=b"{}")
    assert await state() is RedriveStatus.RETRYING
    again = await hooks.claimed(event_id)
    assert again.attempt == 2
    await hooks.store.settle(again, DeliveryOutcome.OK)
    assert await hooks.webhook_state(again.job_id) == "ok"
    assert await state() is RedriveStatus.OK
    assert (await hooks.redrive(event_id)).facts["skipped"] == [event_id]
    assert await hooks.nothing_due()


async def due(hooks: WebhookHarness) -> list[str]:
    return [each.name for each in (await hooks.store.next_due(10)).entries]


async def test_dead_letters_of_a_job_are_redriven_in_order(hooks: WebhookHarness) -> None:
    job_id, (first, second, third) = await dead_ones(hooks, "c:1", "b:2", "a:3")
    _, [other] = await dead_ones(hooks, "z:1")
    outcome = await hooks.redrive(third, other, first, second)
    assert [name for name in outcome.facts["redriven"] if name != other] == [first, second, third]
    assert sorted(await due(hooks)) == sorted([first, other])
    assert await hooks.claim(second) is None
    assert (await hooks.redrive(second)).facts["skipped"] == [second]  # it waits for its turn
    taken = await hooks.claimed(first)
    await hooks.store.settle(taken, DeliveryOutcome.RETRY, delay_ms=60_000, detail=b"{}")
    assert sorted(await due(hooks)) == sorted([other, first])
    await hooks.due_now(first)
    for name in (first, second, third):
        becomes = DeliveryOutcome.DEAD if name == second else DeliveryOutcome.OK
        await hooks.store.settle(await hooks.claimed(name), becomes)
    assert await due(hooks) == [other]
    assert await hooks.client.exists(hooks.keys.redrives(job_id)) == 0
    assert (await hooks.redrive(first, second)).facts["redriven"] == [second]


async def test_a_deleted_dead_letter_lets_the_next_proceed(hooks: WebhookHarness) -> None:
    _, (first, second) = await dead_ones(hooks, "b:1", "a:2")
    await hooks.redrive(first, second)
    await hooks.client.hdel(hooks.keys.dead_letter_states, first)
    assert await hooks.claim(first) is None
    assert await due(hooks) == [second]
    assert await hooks.claim(second) is not None
    # If all are deleted, nothing is due.
    await hooks.due_now(second)
    await hooks.client.delete(hooks.keys.dead_letters)
    assert await hooks.claim(second) is None
    assert await hooks.nothing_due()
    assert await hooks.letters.event_ids() == []


async def test_a_redrive_is_atomic_and_its_answer_repeated(hooks: WebhookHarness) -> None:
    event_id = await dead(hooks)
    outcome = await hooks.redrive(event_id, "wf_20260214_001:nope:00000000")
    assert outcome.answer is WorkflowAnswer.MISSING
    assert outcome.facts["items"] == ["wf_20260214_001:nope:00000000"]
    assert await hooks.nothing_due()
    first = await hooks.redrive(event_id, key="k")
    again = await hooks.redrive(event_id, key="k")
    assert again.replayed
    assert again.facts == first.facts
    other = await hooks.redrive("other", key="k")
    assert other.answer is WorkflowAnswer.REUSED


@pytest.mark.parametrize("key", ["outbox", "delivery", "job"])
async def test_a_corrupt_outbox_does_not_block_others(hooks: WebhookHarness, key: str) -> None:
    broken, sound = await hooks.job(URL), await hooks.job(URL)
    name = getattr(hooks.keys, key)(broken)
    await hooks.client.delete(name)
    await hooks.client.set(name, "something else")
    taken = await hooks.store.claim([broken, sound], 60_000)
    assert [each.name for each in taken] == [sound]
    look = await hooks.store.next_due(10)
    assert {each.name: each.at_ms > look.now_ms + 30_000 for each in look.entries}[broken]
    assert await hooks.client.get(name) == b"something else"


async def test_all_data_of_deliveries_is_bounded(hooks: WebhookHarness) -> None:
    """Data of deliveries expires or is capped."""
    event_id = await dead(hooks)
    await hooks.redrive(event_id)
    await hooks.claim(event_id)
    kept = await hooks.client.keys(hooks.keys.delivery("*"))
    for name in [*kept, *await hooks.client.keys(hooks.keys.redrives("*"))]:
        assert await hooks.client.ttl(name) > 3600

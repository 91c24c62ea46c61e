"""Canceling: at once for a waiting job, by its worker for a running one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from common.contracts.queue import Answer as Reply
from common.jobs.store import Claim, JobOutcome, Lease, WorkerIdentity
from tests.conftest import eventually
from tests.gateway.asgi import Answer
from tests.gateway.conftest import CHAT, Gateway, Make, check_problem

JSON = {"content-type": "application/json"}
WORKER = WorkerIdentity("workers", "c1", 30_000, 600)


async def cancel(
    gateway: Gateway, job_id: str, body: object = None, headers: dict[str, str] | None = None
) -> Answer:
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    typed = {**(JSON if raw else {}), **(headers or {})}
    return await gateway.client.send("POST", f"/v1/jobs/{job_id}/cancel", typed, raw)


async def take(gateway: Gateway) -> tuple[str, str]:
    """The next message of the queue, as a worker reads it: job id and message id."""
    redis, queue = gateway.redis, gateway.keys.queue
    if not await redis.xinfo_groups(queue):
        await redis.xgroup_create(queue, WORKER.group, id="0")
    got: Any = await redis.xreadgroup(WORKER.group, WORKER.consumer, {queue: ">"}, count=1)
    [(message_id, fields)] = got[0][1]
    return fields[b"job_id"].decode(), message_id.decode()


async def begin(gateway: Gateway) -> Lease:
    """The next job, begun by a Sluice worker that has not ended it yet."""
    job_id, message_id = await take(gateway)
    [reply] = await gateway.state.store.begin([Claim(job_id, message_id, "t")], WORKER)
    assert not isinstance(reply, Exception)
    assert reply.answer is Reply.RUN
    assert isinstance(reply.value, int | bytes)
    return Lease(job_id, message_id, int(reply.value), "t")


async def end(gateway: Gateway, lease: Lease, status: str = "canceled") -> None:
    ending = JobOutcome(status, "worker.cancel", b'{"attempt":1}')
    assert await gateway.state.store.finish(lease, WORKER, ending) is Reply.OK


async def events(gateway: Gateway, job_id: str) -> list[tuple[str, str, Any]]:
    entries = await gateway.redis.xrange(gateway.keys.events(job_id))
    return [(e[b"type"].decode(), e[b"step"].decode(), json.loads(e[b"data"])) for _, e in entries]


async def status(gateway: Gateway, job_id: str) -> str:
    answer = await gateway.client.get(f"/v1/jobs/{job_id}")
    return str(answer.json()["status"])


async def test_a_queued_job_is_canceled_at_once(gateway: Gateway) -> None:
    job_id = await gateway.create({**CHAT, "ttl_s": 600})
    answer = await cancel(gateway, job_id)
    assert (answer.status, answer.json()) == (200, {"job_id": job_id, "status": "canceled"})
    assert answer.header("content-type") == "application/json"
    assert answer.header("location") == f"/v1/jobs/{job_id}"
    assert answer.header("link") == f'</v1/jobs/{job_id}/events>; rel="monitor"'
    assert await status(gateway, job_id) == "canceled"
    assert (await events(gateway, job_id))[-1] == ("canceled", "gateway.cancel", {})
    assert 590 < await gateway.redis.ttl(gateway.keys.job(job_id)) <= 600


async def test_delete_cancels_too(gateway: Gateway) -> None:
    job_id = await gateway.create()
    answer = await gateway.client.send("DELETE", f"/v1/jobs/{job_id}")
    assert (answer.status, answer.json()) == (200, {"job_id": job_id, "status": "canceled"})
    again = await gateway.client.send("DELETE", f"/v1/jobs/{job_id}")
    assert (again.status, again.json()) == (200, answer.json())


async def test_delete_ignores_a_body(fake_gateway: Gateway) -> None:
    job_id = await fake_gateway.create()
    answer = await fake_gateway.client.send("DELETE", f"/v1/jobs/{job_id}", {}, b"{garbage")
    assert answer.status == 200
    assert (await events(fake_gateway, job_id))[-1][2] == {}


async def test_canceling_again_changes_nothing(gateway: Gateway) -> None:
    job_id = await gateway.create()
    first = await cancel(gateway, job_id, {"reason": "a"})
    before = await gateway.snapshot()
    again = await cancel(gateway, job_id, {"reason": "b"})
    assert (again.status, again.body) == (200, first.body)
    assert await gateway.snapshot() == before


async def test_fifty_concurrent_cancels_write_one_event(gateway: Gateway) -> None:
    job_id = await gateway.create()
    answers = await asyncio.gather(*(cancel(gateway, job_id) for _ in range(50)))
    assert {(answer.status, answer.body) for answer in answers} == {(200, answers[0].body)}
    assert [kind for kind, _, _ in await events(gateway, job_id)] == ["queued", "canceled"]


@pytest.mark.parametrize("reason", ["", "x" * 500, "é\n\u0000😀", '"}\\', "12345678901234567890"])
async def test_the_reason_is_published(gateway: Gateway, reason: str) -> None:
    job_id = await gateway.create()
    assert (await cancel(gateway, job_id, {"reason": reason})).status == 200
    assert (await events(gateway, job_id))[-1][2] == {"reason": reason}
    [_, canceled] = await gateway.watch_all(job_id)
    assert canceled.event == "canceled"
    assert json.loads(canceled.data)["data"] == {"reason": reason}


@pytest.mark.parametrize("body", [{}, {"reason": None}, b"", b"{ }"])
async def test_the_reason_is_optional(fake_gateway: Gateway, body: object) -> None:
    job_id = await fake_gateway.create()
    assert (await cancel(fake_gateway, job_id, body)).status == 200
    assert (await events(fake_gateway, job_id))[-1][2] == {}


@pytest.mark.parametrize("content_type", ["", "text/plain", "x"])
async def test_an_empty_body_needs_no_content_type(
    fake_gateway: Gateway, content_type: str
) -> None:
    job_id = await fake_gateway.create()
    answer = await cancel(fake_gateway, job_id, headers={"content-type": content_type})
    assert answer.status == 200


BAD: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "garbage": (b"{reason", JSON, 400, "malformed_json"),
    "blank": (b" ", JSON, 400, "malformed_json"),
    "bad utf-8": (b'{"reason":"\xff"}', JSON, 400, "malformed_json"),
    "lone surrogate": (b'{"reason":"\\ud800"}', JSON, 400, "malformed_json"),
    "deep": (b"[" * 70 + b"]" * 70, JSON, 400, "nested_too_deep"),
    "no type": (b"{}", {"content-type": ""}, 415, "unsupported_media_type"),
    "a form": (b"reason=x", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
    "null": (b"null", JSON, 422, "invalid_request"),
    "list": (b"[]", JSON, 422, "invalid_request"),
    "text": (b'"because"', JSON, 422, "invalid_request"),
    "too long": (b'{"reason":"%b"}' % (b"x" * 501), JSON, 422, "invalid_request"),
    "number": (b'{"reason":1}', JSON, 422, "invalid_request"),
    "true": (b'{"reason":true}', JSON, 422, "invalid_request"),
    "object": (b'{"reason":{}}', JSON, 422, "invalid_request"),
    "more": (b'{"reason":"x","force":true}', JSON, 422, "invalid_request"),
    "huge": (b'{"reason":"%b"}' % (b"x" * 300_000), JSON, 413, "body_too_large"),
}


@pytest.mark.parametrize("name", BAD)
async def test_invalid_bodies_change_nothing(fake_gateway: Gateway, name: str) -> None:
    body, headers, expected, code = BAD[name]
    job_id = await fake_gateway.create()
    before = await fake_gateway.snapshot()
    check_problem(await cancel(fake_gateway, job_id, body, headers), expected, code)
    assert await fake_gateway.snapshot() == before


@pytest.mark.parametrize("job_id", ["none", "-", "a%00b", "%F0%9F%98%80", "x" * 200, "a:events"])
@pytest.mark.parametrize("how", ["POST", "DELETE"])
async def test_unknown_jobs_are_not_found(gateway: Gateway, how: str, job_id: str) -> None:
    target = f"/v1/jobs/{job_id}" + ("/cancel" if how == "POST" else "")
    check_problem(await gateway.client.send(how, target), 404, "job_not_found")
    assert await gateway.redis.dbsize() == 0


@pytest.mark.parametrize("ended", ["done", "error", "canceled"])
async def test_a_job_that_has_ended_is_not_changed(gateway: Gateway, ended: str) -> None:
    job_id = await gateway.create()
    await gateway.finish(job_id, ended)
    before = await gateway.snapshot()
    answer = await cancel(gateway, job_id, {"reason": "late"}, {"prefer": "wait=20"})
    assert (answer.status, answer.json()) == (200, {"job_id": job_id, "status": ended})
    assert await gateway.snapshot() == before


async def test_the_worker_of_a_running_job_is_notified(gateway: Gateway) -> None:
    job_id = await gateway.create()
    lease = await begin(gateway)
    messages = await subscribed(gateway)
    answer = await cancel(gateway, job_id, {"reason": "enough"})
    assert answer.status == 202
    assert answer.json() == {"job_id": job_id, "status": "running", "canceling": True}
    assert answer.header("location") == f"/v1/jobs/{job_id}"
    assert answer.header("retry-after") == "1"
    assert await status(gateway, job_id) == "running"
    await eventually(lambda: messages.get(job_id))
    kinds = await events(gateway, job_id)
    assert kinds[-1] == ("canceling", "gateway.cancel", {"reason": "enough"})

    again = await gateway.client.send("DELETE", f"/v1/jobs/{job_id}")
    assert (again.status, again.body) == (202, answer.body)
    assert await events(gateway, job_id) == kinds, "the event is written once"
    await eventually(lambda: messages.get(job_id) == 2)

    await end(gateway, lease)
    ended = await cancel(gateway, job_id)
    assert (ended.status, ended.json()) == (200, {"job_id": job_id, "status": "canceled"})


async def subscribed(gateway: Gateway) -> dict[str, int]:
    """Number of messages per job on the control channel, from now on."""
    messages: dict[str, int] = {}
    pubsub = gateway.redis.pubsub()
    await pubsub.subscribe(gateway.keys.control)

    async def listen() -> None:
        async for message in pubsub.listen():
            if message["type"] == "message":
                job_id = message["data"].decode()
                messages[job_id] = messages.get(job_id, 0) + 1

    listening = asyncio.create_task(listen())

    async def close() -> None:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await pubsub.aclose()  # type: ignore[no-untyped-call]

    gateway.stack.push_async_callback(close)
    return messages


@pytest.mark.parametrize("ended", ["canceled", "done", "error"])
async def test_a_cancel_waits_for_the_end(gateway: Gateway, ended: str) -> None:
    """The job may end by itself before the cancel request arrives."""
    job_id = await gateway.create()
    lease = await begin(gateway)
    canceling = asyncio.create_task(cancel(gateway, job_id, headers={"prefer": "wait=20"}))
    await eventually(lambda: gateway.hub._topics)
    await end(gateway, lease, ended)
    answer = await canceling
    assert (answer.status, answer.json()) == (200, {"job_id": job_id, "status": ended})
    assert answer.header("preference-applied") == "wait=20"
    assert gateway.hub.clients == 0


async def test_waiting_ends_at_the_timeout(make: Make) -> None:
    gateway = make(max_wait_s=0.05)
    job_id = await gateway.create()
    await begin(gateway)
    answer = await gateway.client.send("DELETE", f"/v1/jobs/{job_id}", {"prefer": "wait=20"})
    assert (answer.status, answer.json()["canceling"]) == (202, True)
    assert gateway.hub.clients == 0


async def test_waiting_ends_if_the_job_expires(make: Make) -> None:
    gateway = make(sse_heartbeat_s=0.05)
    job_id = await gateway.create()
    await begin(gateway)
    canceling = asyncio.create_task(cancel(gateway, job_id, headers={"prefer": "wait=20"}))
    await eventually(lambda: gateway.hub._topics)
    await gateway.redis.delete(gateway.keys.job(job_id), gateway.keys.events(job_id))
    assert (await canceling).status == 202


async def test_canceling_a_queued_job_does_not_wait(gateway: Gateway) -> None:
    job_id = await gateway.create()
    answer = await cancel(gateway, job_id, headers={"prefer": "wait=60"})
    assert answer.json()["status"] == "canceled"


async def test_a_job_with_an_expired_lease_ends_when_claimed(gateway: Gateway) -> None:
    """Not before: a worker without leases may be running the job."""
    job_id = await gateway.create()
    lease = await begin(gateway)
    await gateway.redis.hset(gateway.keys.lease(job_id), "deadline_ms", "1")  # type: ignore[misc]
    assert (await cancel(gateway, job_id)).status == 202
    claim = Claim(job_id, lease.message_id, "another")
    [reply] = await gateway.state.store.begin([claim], WORKER)
    assert not isinstance(reply, Exception)
    assert reply.answer is Reply.TERMINAL
    assert await status(gateway, job_id) == "canceled"
    late = JobOutcome("done", "worker.done", b"{}", result=b"{}")
    assert await gateway.state.store.finish(lease, WORKER, late) is Reply.ALREADY
    assert (await cancel(gateway, job_id)).json() == {"job_id": job_id, "status": "canceled"}


async def test_a_third_party_workers_job_is_only_marked(gateway: Gateway) -> None:
    """A worker without leases may end the job at any time."""
    job_id = await gateway.create()
    await take(gateway)
    await gateway.redis.hset(gateway.keys.job(job_id), "status", "running")  # type: ignore[misc]
    assert (await cancel(gateway, job_id)).status == 202
    await gateway.finish(job_id)
    answer = await cancel(gateway, job_id)
    assert (answer.status, answer.json()["status"]) == (200, "done")


async def test_a_worker_skips_a_canceled_job(gateway: Gateway) -> None:
    job_id = await gateway.create()
    await cancel(gateway, job_id)
    claimed, message_id = await take(gateway)
    assert claimed == job_id
    [reply] = await gateway.state.store.begin([Claim(job_id, message_id, "t")], WORKER)
    assert not isinstance(reply, Exception)
    assert reply.answer is Reply.TERMINAL
    assert (await gateway.redis.xpending(gateway.keys.queue, "workers"))["pending"] == 0
    assert [kind for kind, _, _ in await events(gateway, job_id)] == ["queued", "canceled"]


async def test_an_open_stream_gets_the_canceled_event(gateway: Gateway) -> None:
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id)
    await stream.event("queued")
    await cancel(gateway, job_id, {"reason": "r"})
    [canceled] = await stream.rest()
    assert json.loads(canceled.data)["data"] == {"reason": "r"}


@pytest.mark.parametrize("key", ["job", "events", "lease"])
async def test_keys_of_another_type_are_reported(gateway: Gateway, key: str) -> None:
    job_id = await gateway.create()
    name = getattr(gateway.keys, key)(job_id)
    await gateway.redis.delete(name)
    await gateway.redis.set(name, "x")
    answer = await cancel(gateway, job_id)
    check_problem(answer, 503, "store_corrupt")
    if key != "job":
        assert await status(gateway, job_id) == "queued", "a failed cancel changes nothing"
    assert await gateway.redis.get(name) == b"x"


async def test_an_invalid_ttl_counts_as_the_default(make: Make) -> None:
    gateway = make(job_ttl_s=777)
    job_id = await gateway.create()
    await gateway.redis.hset(gateway.keys.job(job_id), "ttl_s", "0")  # type: ignore[misc]
    await cancel(gateway, job_id)
    assert 770 < await gateway.redis.ttl(gateway.keys.job(job_id)) <= 777

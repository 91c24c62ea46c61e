"""Canceling a job, and `Prefer: wait`, which delays a response until a change."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sluice.common.contracts.queue import Answer as Reply
from sluice.common.jobs.store import Claim, JobOutcome, Lease, WorkerIdentity
from sluice.gateway.http.headers import parse_prefer_wait
from tests.support.gateway.asgi import JSON, Answer
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem, partitioned, settle
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only


WORKER = WorkerIdentity("workers", "c1", 30_000, 600)


async def cancel(
    gateway: Gateway, job_id: str, body: object = None, headers: dict[str, str] | None = None
) -> Answer:
    typed = JSON if body else {}
    sent = {**typed, **(headers or {})}
    return await gateway.client.send("POST", f"/v1/jobs/{job_id}/cancel", sent, body)


async def begin(gateway: Gateway) -> Lease:
    """The next job, begun by a worker that has not ended it yet."""
    redis, queue = gateway.redis, gateway.keys.queue
    await redis.xgroup_create(queue, WORKER.group, id="0")
    got: Any = await redis.xreadgroup(WORKER.group, WORKER.consumer, {queue: ">"}, count=1)
    [(message_id, fields)] = got[0][1]
    claim = Claim(fields[b"job_id"].decode(), message_id.decode(), "t")
    [reply] = await gateway.state.store.begin([claim], WORKER)
    assert not isinstance(reply, Exception)
    assert reply.answer is Reply.RUN
    assert isinstance(reply.value, int | bytes)
    return Lease(claim.job_id, claim.message_id, int(reply.value), "t")


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
    answer = await cancel(gateway, job_id, headers={"prefer": "wait=60"})
    assert (answer.status, answer.json()) == (200, {"job_id": job_id, "status": "canceled"})
    assert answer.header("content-type") == "application/json"
    assert answer.header("location") == f"/v1/jobs/{job_id}"
    assert answer.header("link") == f'</v1/jobs/{job_id}/events>; rel="monitor"'
    assert await status(gateway, job_id) == "canceled"
    assert (await events(gateway, job_id))[-1] == ("canceled", "gateway.cancel", {})
    assert 590 < await gateway.redis.ttl(gateway.keys.job(job_id)) <= 600
    before = await gateway.snapshot()
    again = await cancel(gateway, job_id, {"reason": "b"})
    assert (again.status, again.body) == (200, answer.body)
    assert await gateway.snapshot() == before


async def test_the_reason_is_published(gateway: Gateway) -> None:
    for reason in ("", "x" * 500, "é\n\u0000😀", '"}\\', "12345678901234567890"):
        job_id, stream = await gateway.watched()
        assert (await cancel(gateway, job_id, {"reason": reason})).status == 200
        [canceled] = await stream.rest()
        assert (canceled.event, canceled.json()["data"]) == ("canceled", {"reason": reason})
    without = [("POST", "/cancel", JSON, body) for body in (b"{}", b'{"reason":null}', b"{ }")]
    # An empty body needs no content type, and DELETE ignores the body.
    without += [
        ("POST", "/cancel", {"content-type": kind}, b"") for kind in ("", "text/plain", "x")
    ]
    without += [("DELETE", "", {}, body) for body in (b"{garbage", b"")]
    for method, path, headers, body in without:
        job_id = await gateway.create()
        answer = await gateway.client.send(method, f"/v1/jobs/{job_id}{path}", headers, body)
        assert (answer.status, answer.json()) == (200, {"job_id": job_id, "status": "canceled"})
        assert (await events(gateway, job_id))[-1][2] == {}


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


async def test_invalid_bodies_change_nothing(gateway: Gateway) -> None:
    job_id = await gateway.create()
    before = await gateway.snapshot()
    for body, headers, expected, code in BAD.values():
        check_problem(await cancel(gateway, job_id, body, headers), expected, code)
    assert await gateway.snapshot() == before


async def test_a_running_job_is_canceled_by_its_worker(gateway: Gateway) -> None:
    job_id = await gateway.create()
    lease = await begin(gateway)
    answer = await cancel(gateway, job_id, {"reason": "enough"})
    assert answer.status == 202
    assert answer.json() == {"job_id": job_id, "status": "running", "canceling": True}
    assert answer.header("location") == f"/v1/jobs/{job_id}"
    assert answer.header("retry-after") == "1"
    assert await status(gateway, job_id) == "running"
    kinds = await events(gateway, job_id)
    assert kinds[-1] == ("canceling", "gateway.cancel", {"reason": "enough"})
    again = await gateway.client.send("DELETE", f"/v1/jobs/{job_id}")
    assert (again.status, again.body) == (202, answer.body)
    await end(gateway, lease)
    ended = await cancel(gateway, job_id)
    assert (ended.status, ended.json()) == (200, {"job_id": job_id, "status": "canceled"})


@pytest.mark.parametrize("ended", ["canceled", "done", "error", "expired", "timeout"])
async def test_a_cancel_waits_for_the_end(make: Make, ended: str) -> None:
    """The job may end by itself before the cancel request arrives, and it may expire."""
    gateway = make(sse_heartbeat_s=0.05, max_wait_s=0.05 if ended == "timeout" else 60)
    job_id = await gateway.create()
    lease = await begin(gateway)
    canceling = asyncio.create_task(cancel(gateway, job_id, headers={"prefer": "wait=20"}))
    if ended == "expired":
        await eventually(lambda: gateway.hub._topics)
        await gateway.redis.delete(gateway.keys.job(job_id), gateway.keys.events(job_id))
    elif ended != "timeout":
        await eventually(lambda: gateway.hub._topics)
        await end(gateway, lease, ended)
    answer = await canceling
    if ended in ("expired", "timeout"):
        assert (answer.status, answer.json()["canceling"]) == (202, True)
    else:
        assert (answer.status, answer.json()) == (200, {"job_id": job_id, "status": ended})
        assert answer.header("preference-applied") == "wait=20"
        before = await gateway.snapshot()
        again = await cancel(gateway, job_id, {"reason": "late"}, {"prefer": "wait=20"})
        assert (again.status, again.json()) == (200, answer.json()), "it is not changed"
        assert await gateway.snapshot() == before
    assert gateway.hub.clients == 0


async def one_watch(gateway: Gateway) -> str:
    """The id of the job that a waiting request watches, once it is live."""
    await eventually(lambda: gateway.hub._topics)
    [job_id] = gateway.hub._topics
    return job_id


async def test_requests_are_answered_at_the_timeout(make: Make) -> None:
    gateway = make(max_wait_s=0.05)
    wait = {"prefer": "wait=20"}
    answer = await gateway.client.post(CHAT, wait)
    assert (answer.status, list(answer.json())) == (202, ["job_id"])
    target = f"/v1/jobs/{answer.json()['job_id']}"
    etag = (await gateway.client.get(target)).header("etag") or ""
    answer = await gateway.client.get(target, {**wait, "if-none-match": etag})
    assert (answer.status, answer.body) == (304, b"")
    two_headers = [("prefer", "respond-async"), ("prefer", "wait=5")]  # RFC 7240, section 2
    answer = await gateway.client.get(target, two_headers)
    assert answer.header("preference-applied") is not None
    assert gateway.hub.clients == 0


async def test_a_job_that_expires_while_waiting_is_still_accepted(make: Make) -> None:
    """The client needs the id of the job it created; a read gets 404."""
    gateway = make(sse_heartbeat_s=0.05)
    wait = {"prefer": "wait=20"}
    posting = asyncio.create_task(gateway.client.post(CHAT, wait))
    job_id = await one_watch(gateway)
    reading = asyncio.create_task(gateway.client.get(f"/v1/jobs/{job_id}", wait))
    await eventually(lambda: gateway.hub.clients == 2)
    await gateway.redis.delete(gateway.keys.job(job_id), gateway.keys.events(job_id))
    answer = await posting
    assert (answer.status, answer.json()) == (202, {"job_id": job_id})
    check_problem(await reading, 404, "job_not_found")


async def test_a_job_is_accepted_if_redis_fails_while_waiting(make: Make) -> None:
    """A 503 here would invite the client to submit the job a second time."""
    gateway = make(sse_heartbeat_s=0.05)
    posting = asyncio.create_task(gateway.client.post(CHAT, {"prefer": "wait=20"}))
    job_id = await one_watch(gateway)
    gateway.state.store._client.hgetall = raising(ConnectionError("away"))
    await gateway.emit(job_id, "running")
    answer = await posting
    assert (answer.status, answer.json()) == (202, {"job_id": job_id})


async def test_invalid_preferences_are_ignored(gateway: Gateway) -> None:
    values = ("", "wait", "wait=", "wait=x", "wait=-1", "wait=0", "respond-async", "await=9")
    for prefer in (*values, "=;,=", "\xff"):
        answer = await gateway.client.post(CHAT, {"prefer": prefer})
        assert (answer.status, answer.header("preference-applied")) == (202, None), prefer


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("wait=5", 5),
        ("Wait = 5", 5),
        ('wait="5"', 5),
        ("respond-async, wait=5", 5),
        ("respond-async;x=y,wait=5;z", 5),
        ("wait=1000000000000", 60),
        ("wait=999999", 60),
        (None, 0),
        ("x-wait=5", 0),
        ("wait=" + "9" * 100_000, 60),
    ],
)
def test_wait_is_parsed_and_limited(prefer: str | None, seconds: float) -> None:
    assert parse_prefer_wait(prefer, 60) == seconds


async def test_a_read_waits_for_a_change_or_the_end(gateway: Gateway) -> None:
    job_id = await gateway.create()
    target, wait = f"/v1/jobs/{job_id}", {"prefer": "wait=20"}
    etag = (await gateway.client.get(target)).header("etag") or ""
    for_change = asyncio.create_task(gateway.client.get(target, {**wait, "if-none-match": etag}))
    for_end = asyncio.create_task(gateway.client.get(target, wait))
    await one_watch(gateway)
    await eventually(lambda: gateway.hub.clients == 2)
    await gateway.redis.hset(gateway.keys.job(job_id), "status", "running")
    await gateway.emit(job_id, "running")
    answer = await for_change
    assert (answer.status, answer.json()["status"]) == (200, "running")
    assert (await gateway.client.get(target, {**wait, "if-none-match": etag})).status == 200
    await settle()
    assert not for_end.done()
    await gateway.finish(job_id, hint=False)  # a third-party worker publishes no hints
    for answer in (await for_end, await gateway.client.get(target, wait)):
        assert (answer.status, answer.json()["status"]) == (200, "done")
    assert gateway.hub.clients == 0


@partitioned
async def test_a_submission_waits_for_the_end(gateway: Gateway) -> None:
    """A repeated request as well."""
    keyed = {"idempotency-key": "k", "prefer": "wait=20"}
    posting = asyncio.create_task(gateway.client.post(CHAT, keyed))
    job_id = await one_watch(gateway)
    again = asyncio.create_task(gateway.client.post(CHAT, keyed))
    await eventually(lambda: gateway.hub.clients == 2)
    await gateway.emit(job_id, "running")
    await gateway.finish(job_id)
    for answer, replayed in ((await posting, None), (await again, "true")):
        assert answer.status == 200
        assert answer.header("location") == f"/v1/jobs/{job_id}"
        assert answer.header("preference-applied") == "wait=20"
        assert answer.header("idempotent-replayed") == replayed
        job = answer.json()
        assert (job["job_id"], job["status"], job["result"]) == (job_id, "done", {"text": "hi"})
        assert answer.body == (await gateway.client.get(f"/v1/jobs/{job_id}")).body
    assert gateway.hub.clients == 0


async def test_disconnecting_and_shutdown_end_the_wait(gateway: Gateway) -> None:
    """Otherwise closed long polls would use up the stream limit of the process."""
    job_id = await gateway.create()
    exchange = gateway.client.begin("GET", f"/v1/jobs/{job_id}", {"prefer": "wait=60"})
    await one_watch(gateway)
    exchange._hung_up.set()
    await eventually(lambda: gateway.hub.clients == 0, 2.0)
    posting = asyncio.create_task(gateway.client.post(CHAT, {"prefer": "wait=60"}))
    await one_watch(gateway)
    gateway.hub.close_streams()
    assert (await posting).status == 202

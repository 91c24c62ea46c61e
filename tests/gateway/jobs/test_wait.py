"""`Prefer: wait`: the response waits for a change, or until the timeout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.http.headers import parse_prefer_wait
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem, partitioned, settle
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only


async def one_watch(gateway: Gateway) -> str:
    """The id of the job that a waiting request watches, once it is live."""
    await eventually(lambda: gateway.hub._topics)
    [job_id] = gateway.hub._topics
    return job_id


@partitioned
async def test_a_submission_waits_for_the_end(gateway: Gateway) -> None:
    posting = asyncio.create_task(gateway.client.post(CHAT, {"prefer": "wait=20"}))
    job_id = await one_watch(gateway)
    await gateway.emit(job_id, "running")
    await gateway.finish(job_id)
    answer = await posting
    assert answer.status == 200
    assert answer.header("location") == f"/v1/jobs/{job_id}"
    assert answer.header("preference-applied") == "wait=20"
    job = answer.json()
    assert (job["job_id"], job["status"], job["result"]) == (job_id, "done", {"text": "hi"})
    assert answer.body == (await gateway.client.get(f"/v1/jobs/{job_id}")).body
    assert gateway.hub.clients == 0


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


async def test_a_replay_waits_as_well(gateway: Gateway) -> None:
    keyed = {"idempotency-key": "k", "prefer": "wait=20"}
    job_id = await gateway.create(idempotency_key="k")
    posting = asyncio.create_task(gateway.client.post(CHAT, keyed))
    await one_watch(gateway)
    await gateway.finish(job_id)
    answer = await posting
    assert (answer.status, answer.json()["job_id"]) == (200, job_id)
    assert answer.header("idempotent-replayed") == "true"


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

    async def away(*args: Any) -> Any:
        raise ConnectionError("away")

    gateway.state.store._client.hgetall = away  # type: ignore[method-assign]
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
    await gateway.redis.hset(gateway.keys.job(job_id), "status", "running")  # type: ignore[misc]
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


async def test_shutdown_ends_waiting(gateway: Gateway) -> None:
    posting = asyncio.create_task(gateway.client.post(CHAT, {"prefer": "wait=60"}))
    await one_watch(gateway)
    gateway.hub.close_streams()
    assert (await posting).status == 202


async def test_a_client_that_disconnects_while_waiting_is_removed(gateway: Gateway) -> None:
    """Otherwise closed long polls would use up the stream limit of the process."""
    job_id = await gateway.create()
    exchange = gateway.client.begin("GET", f"/v1/jobs/{job_id}", {"prefer": "wait=60"})
    await one_watch(gateway)
    exchange._hung_up.set()
    await eventually(lambda: gateway.hub.clients == 0, 2.0)

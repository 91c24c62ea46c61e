"""One path through each area of the API, on every server, with one partition and with four.

Other tests of the gateway run on fakeredis; the scripts are tested on every server in tests/common.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sluice.common.jobs.queue import Promoter
from sluice.gateway.observability.history.collector import Baseline
from sluice.gateway.observability.history.sampler import HistorySampler
from tests.gateway.observability.history.test_stream import jobs_in, open_page
from tests.gateway.observability.metrics.test_metrics import scrape
from tests.support.gateway.access import call, id_of, key_for, post
from tests.support.gateway.dashboard import SESSION, Browser
from tests.support.gateway.dead_letters import EXHAUSTED, NO_JOB, dead, left
from tests.support.gateway.harness import CHAT, Gateway, check_problem, partitioned
from tests.support.gateway.openai import HELLO, STREAMED, Work, begin, chunks, text_of
from tests.support.waiting import eventually

pytestmark = partitioned


async def watched(gateway: Gateway) -> str:
    """The id of the only job that a request waits for."""
    await eventually(lambda: gateway.hub._topics)
    [job_id] = gateway.hub._topics
    return job_id


async def test_jobs_are_accepted_watched_listed_and_canceled(gateway: Gateway) -> None:
    job_id = await gateway.create({**CHAT, "max_attempts": 3}, idempotency_key="k")
    assert await gateway.create({**CHAT, "max_attempts": 3}, idempotency_key="k") == job_id
    stream = await gateway.client.watch(job_id)
    seen = await stream.event("queued")
    await gateway.emit(job_id, "running")
    await gateway.finish(job_id, hint=False)
    assert [block.event for block in await stream.rest()] == ["running", "done"]
    resumed = await gateway.watch_all(job_id, seen.id)
    assert [block.event for block in resumed] == ["running", "done"]
    answer = await gateway.client.get(f"/v1/jobs/{job_id}")
    assert (answer.json()["status"], answer.json()["result"]) == ("done", {"text": "hi"})
    posting = asyncio.create_task(gateway.client.post(CHAT, {"prefer": "wait=20"}))
    waited = await watched(gateway)
    await gateway.finish(waited)
    assert (await posting).status == 200
    others = [await gateway.create() for _ in range(8)]
    answer = await gateway.client.send("DELETE", f"/v1/jobs/{others[0]}")
    assert (answer.status, answer.json()["status"]) == (200, "canceled")
    pages = await gateway.client.pages("/v1/jobs?limit=3", "cursor")
    found = [job["job_id"] for page in pages for job in page["jobs"]]
    assert sorted(found) == sorted([job_id, waited, *others])
    [found] = (await gateway.client.get("/v1/jobs?status=canceled&q=hello")).json()["jobs"]
    assert found["job_id"] == others[0]


async def test_delayed_jobs_are_promoted(gateway: Gateway) -> None:
    job_ids = [await gateway.create({**CHAT, "delay_s": 60}) for _ in range(6)]
    assert await gateway.queue_length() == 0
    for job_id in job_ids:
        await gateway.redis.zadd(gateway.keys_of(job_id).scheduled, {job_id: 1})
    queue: Any = gateway.state.queue
    for each in getattr(queue, "queues", [queue]):
        await Promoter(each).run_once()
    assert await gateway.queue_length() == 6


async def test_dead_letters_are_grouped_redriven_and_purged(gateway: Gateway) -> None:
    ids = [await dead(gateway, n, reason=EXHAUSTED if n % 3 else NO_JOB) for n in range(12)]
    first = (await call(gateway, "GET", "/v1/dlq?limit=5")).json()
    rest = (await call(gateway, "GET", f"/v1/dlq?before={first['next']}")).json()
    assert [item["id"] for item in first["items"] + rest["items"]] == ids[::-1]
    groups = (await call(gateway, "GET", "/v1/dlq/groups")).json()["groups"]
    assert [(group["reason"], group["count"]) for group in groups] == [(EXHAUSTED, 8), (NO_JOB, 4)]
    body = {"fingerprint": groups[1]["fingerprint"], "rate_per_s": 1000}
    report = (await call(gateway, "POST", "/v1/dlq/redrive", None, body)).json()
    assert [entry["dead_letter_id"] for entry in report["redriven"]] == ids[9::-3]
    answer = await call(gateway, "POST", f"/v1/dlq/{ids[1]}/redrive")
    assert answer.status == 202
    assert (await call(gateway, "DELETE", f"/v1/dlq/{ids[2]}")).status == 204
    assert (await call(gateway, "DELETE", f"/v1/dlq?reason={EXHAUSTED}")).json() == {"purged": 6}
    assert await left(gateway) == []
    trail = (await call(gateway, "GET", "/v1/trail")).json()["items"]
    assert [entry["action"] for entry in trail] == [*["dlq.purge"] * 2, *["dlq.redrive"] * 2]


async def test_keys_sessions_and_limits(strict: Gateway) -> None:
    admin = await key_for(strict, "root", scopes=("admin",))
    spec = {"name": "shop", "tenant": "shop", "max_jobs": 2, "rate_per_min": 60, "burst": 3}
    key = (await call(strict, "POST", "/v1/keys", admin, spec)).json()["key"]
    assert [(await post(strict, key)).status for _ in range(2)] == [202, 202]
    check_problem(await post(strict, key), 429, "quota_exceeded")
    limited = await key_for(strict, rate_per_min=1, burst=1)
    assert (await post(strict, limited)).status == 202
    check_problem(await post(strict, limited), 429, "rate_limited")
    path = f"/v1/keys/{id_of(key)}"
    rotated = await call(strict, "POST", f"{path}/rotate", admin, {"grace_s": 0})
    check_problem(await call(strict, "GET", "/v1/whoami", key), 401, "invalid_key")
    key = rotated.json()["key"]
    assert (await call(strict, "GET", "/v1/whoami", key)).status == 200
    assert (await call(strict, "DELETE", path, admin)).status == 204
    check_problem(await call(strict, "GET", "/v1/whoami", key), 401, "invalid_key")
    browser = Browser(strict)
    assert (await browser.sign_in(admin, actions=True)).status == 200
    assert (await browser.send("POST", "/v1/jobs", CHAT)).status == 202
    assert (await browser.send("DELETE", SESSION)).status == 204
    check_problem(await browser.get("/v1/workers"), 401, "key_required")


async def test_status_metrics_audit_and_pause(gateway: Gateway) -> None:
    for _ in range(5):
        await gateway.create()
    found = await scrape(gateway)
    assert (found.value("gw_up"), found.value("gw_queue_depth")) == (1, 5)
    [queue] = (await gateway.client.get("/v1/queues")).json()["queues"]
    assert (queue["depth"], queue["pending"], queue["paused"]) == (5, 0, None)
    assert (await gateway.client.send("POST", "/v1/queues/jobs:stream/pause")).status == 200
    status = (await gateway.client.get("/v1/status")).json()
    assert status["checks"]["queue"][0]["paused"] is True
    lines = (await gateway.client.send("POST", "/v1/audit")).body.splitlines()
    assert b'"violations_total":0' in lines[-1].replace(b" ", b"")
    assert (await gateway.client.get("/v1/audit")).json()["last"]["jobs_checked"] == 5


async def test_the_history_and_the_dashboard_stream(gateway: Gateway) -> None:
    page = await open_page(gateway, "?only=jobs")
    collector = HistorySampler.over(gateway.state, lambda: 0.0)._collector
    before = (await collector.collect(Baseline())).baseline
    job_ids = {await gateway.create() for _ in range(4)}
    values = (await collector.collect(before)).sample.values
    assert {field.value: values[field] for field in values if field.value == "accepted"} == {
        "accepted": 4
    }
    assert {job["job_id"] for job in await jobs_in(page, 4)} == job_ids
    assert (await gateway.client.get("/v1/stats")).status == 200


async def test_chat_completions_follow_their_job(gateway: Gateway) -> None:
    for body in (HELLO, STREAMED):
        exchange = begin(gateway, body)
        work = Work(gateway, exchange, await watched(gateway))
        await work.run()
        await work.say("Hi there, ", "friend.")
        await work.finish()
        if body is HELLO:
            answer = (await work.answer()).json()
            assert answer["choices"][0]["message"]["content"] == "Hi there, friend."
        else:
            await exchange.start()
            assert text_of(await chunks(exchange)) == "Hi there, friend."
        await eventually(lambda: not gateway.hub._topics)

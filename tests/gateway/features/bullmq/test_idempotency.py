"""An Idempotency-Key becomes the job's id, and adds one job only."""

from __future__ import annotations

import asyncio

from tests.gateway.asgi import Answer
from tests.gateway.conftest import check_problem
from tests.gateway.features.bullmq.kit import QueueApi

BODY = {"name": "render", "data": {"n": 1}, "opts": {"priority": 2}}


async def post(api: QueueApi, key: str, body: object = BODY) -> Answer:
    return await api.post(body, {"idempotency-key": key})


async def jobs(api: QueueApi) -> int:
    found = await api.gateway.redis.zcard(api.keys.key("prioritized"))
    return int(found)


async def test_the_key_becomes_the_job_id(api: QueueApi) -> None:
    first, again = await post(api, "video-1742"), await post(api, '"video-1742"')
    assert first.json() == {"id": "video-1742", "queue": "video", "outcome": "added"}
    assert first.header("idempotency-replayed") is None
    assert first.header("idempotent-replayed") is None
    assert again.json() == {"id": "video-1742", "queue": "video", "outcome": "replayed"}
    assert again.header("idempotency-replayed") == "true"
    assert again.header("idempotent-replayed") == "true", "the earlier spelling"
    assert again.header("location") == first.header("location")
    assert await jobs(api) == 1


async def test_concurrent_requests_add_one_job(api: QueueApi) -> None:
    answers = await asyncio.gather(*(post(api, "k-1") for _ in range(20)))
    outcomes = sorted(answer.json()["outcome"] for answer in answers)
    assert outcomes == ["added"] + ["replayed"] * 19
    assert await jobs(api) == 1


async def test_another_request_with_the_same_key_is_rejected(api: QueueApi) -> None:
    await post(api, "k-1")
    other = await post(api, "k-1", {**BODY, "data": {"n": 2}})
    check_problem(other, 422, "idempotency_key_reused")
    assert await jobs(api) == 1


async def test_a_removed_job_is_not_added_again(api: QueueApi) -> None:
    await post(api, "k-1")
    assert (await api.delete("k-1")).status == 200
    again = await post(api, "k-1")
    assert (again.status, again.json()["outcome"]) == (202, "replayed")
    assert await jobs(api) == 0
    check_problem(await api.get("k-1"), 404, "job_not_found")


async def test_a_key_is_kept_for_a_day(api: QueueApi) -> None:
    await post(api, "k-1")
    left_ms = await api.gateway.redis.pttl(api.keys.idempotency("k-1"))
    assert 86_000_000 < left_ms <= 86_400_000


async def test_a_key_that_is_no_valid_id_gets_a_derived_one(api: QueueApi) -> None:
    for key in ("17", "a:b", "meta", "a/b", "with space", "x" * 200, "key-1"):
        first, again = await post(api, key), await post(api, key)
        job_id = first.json()["id"]
        assert job_id.startswith("key-")
        assert job_id != key
        assert again.json() == {**first.json(), "outcome": "replayed"}
        assert (await api.get(job_id)).json()["state"] == "prioritized"


async def test_a_key_and_a_custom_id_are_rejected(api: QueueApi) -> None:
    body = {**BODY, "opts": {"jobId": "mine"}}
    problem = check_problem(await post(api, "k-1", body), 422, "invalid_request")
    assert problem["errors"][0]["pointer"] == "/opts/jobId"
    assert await jobs(api) == 0


async def test_an_invalid_key_is_rejected(api: QueueApi) -> None:
    check_problem(await post(api, ""), 400, "invalid_idempotency_key")


async def test_queues_do_not_share_keys(api: QueueApi) -> None:
    other = QueueApi(api.gateway, "{video}")
    assert (await post(api, "k-1")).json()["outcome"] == "added"
    assert (await post(other, "k-1")).json()["outcome"] == "added"

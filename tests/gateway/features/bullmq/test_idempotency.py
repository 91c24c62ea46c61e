"""An Idempotency-Key becomes the job's id, and adds one job only."""

from __future__ import annotations

import asyncio

from tests.gateway.asgi import Answer
from tests.gateway.conftest import check_problem
from tests.gateway.features.bullmq.kit import Door

BODY = {"name": "render", "data": {"n": 1}, "opts": {"priority": 2}}


async def post(door: Door, key: str, body: object = BODY) -> Answer:
    return await door.post(body, {"idempotency-key": key})


async def jobs(door: Door) -> int:
    found = await door.gateway.redis.zcard(door.keys.key("prioritized"))
    return int(found)


async def test_the_key_is_the_id_and_a_repetition_is_flagged(door: Door) -> None:
    first, again = await post(door, "video-1742"), await post(door, '"video-1742"')
    assert first.json() == {"id": "video-1742", "queue": "video", "outcome": "added"}
    assert first.header("idempotency-replayed") is None
    assert first.header("idempotent-replayed") is None
    assert again.json() == {"id": "video-1742", "queue": "video", "outcome": "replayed"}
    assert again.header("idempotency-replayed") == "true"
    assert again.header("idempotent-replayed") == "true", "the earlier spelling"
    assert again.header("location") == first.header("location")
    assert await jobs(door) == 1


async def test_at_the_same_time(door: Door) -> None:
    answers = await asyncio.gather(*(post(door, "k-1") for _ in range(20)))
    outcomes = sorted(answer.json()["outcome"] for answer in answers)
    assert outcomes == ["added"] + ["replayed"] * 19
    assert await jobs(door) == 1


async def test_the_same_key_with_another_request(door: Door) -> None:
    await post(door, "k-1")
    other = await post(door, "k-1", {**BODY, "data": {"n": 2}})
    check_problem(other, 422, "idempotency_key_reused")
    assert await jobs(door) == 1


async def test_a_job_that_was_removed_is_not_made_again(door: Door) -> None:
    await post(door, "k-1")
    assert (await door.delete("k-1")).status == 200
    again = await post(door, "k-1")
    assert (again.status, again.json()["outcome"]) == (202, "replayed")
    assert await jobs(door) == 0
    check_problem(await door.get("k-1"), 404, "job_not_found")


async def test_a_key_is_remembered_for_a_while_only(door: Door) -> None:
    await post(door, "k-1")
    left_ms = await door.gateway.redis.pttl(door.keys.idempotency("k-1"))
    assert 86_000_000 < left_ms <= 86_400_000


async def test_a_key_that_can_be_no_id_is_made_one(door: Door) -> None:
    for key in ("17", "a:b", "meta", "a/b", "with space", "x" * 200, "key-1"):
        first, again = await post(door, key), await post(door, key)
        job_id = first.json()["id"]
        assert job_id.startswith("key-")
        assert job_id != key
        assert again.json() == {**first.json(), "outcome": "replayed"}
        assert (await door.get(job_id)).json()["state"] == "prioritized"


async def test_one_of_both_says_the_id(door: Door) -> None:
    body = {**BODY, "opts": {"jobId": "mine"}}
    problem = check_problem(await post(door, "k-1", body), 422, "invalid_request")
    assert problem["errors"][0]["pointer"] == "/opts/jobId"
    assert await jobs(door) == 0


async def test_a_key_that_is_none(door: Door) -> None:
    check_problem(await post(door, ""), 400, "invalid_idempotency_key")


async def test_queues_do_not_share_keys(door: Door) -> None:
    other = Door(door.gateway, "{video}")
    assert (await post(door, "k-1")).json()["outcome"] == "added"
    assert (await post(other, "k-1")).json()["outcome"] == "added"

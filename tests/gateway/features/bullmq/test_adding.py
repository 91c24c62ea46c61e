"""Jobs are added exactly as BullMQ's own `add` does."""

from __future__ import annotations

import json
from typing import Any

from common.contracts.bullmq import BullKeys
from tests.gateway.conftest import Make, check_problem
from tests.gateway.features.bullmq.kit import QUEUES, Door


async def test_the_seeds_job_is_prioritised_and_told_of(door: Door) -> None:
    opts = {"priority": 1, "attempts": 3, "backoff": {"type": "exponential", "delay": 1000}}
    answer = await door.post({"name": "video-generation", "data": {"videoId": "v"}, "opts": opts})
    assert answer.status == 202
    assert answer.json() == {"id": "1", "queue": "video", "outcome": "added"}
    assert answer.header("location") == "/v1/bullmq/video/jobs/1"
    fields = await door.fields("1")
    assert fields["name"] == "video-generation"
    assert json.loads(fields["data"]) == {"videoId": "v"}
    stored = json.loads(fields["opts"])
    assert {name: stored[name] for name in opts} == opts
    assert fields["priority"] == "1"
    redis = door.gateway.redis
    assert await redis.zrange(door.keys.key("prioritized"), 0, -1) == [b"1"]
    events = [entry[b"event"] for _, entry in await redis.xrange(door.keys.events)]
    assert events == [b"added", b"waiting"]


async def test_ids_are_bullmqs_numbers(door: Door) -> None:
    assert [await door.add() for _ in range(3)] == ["1", "2", "3"]
    assert await door.gateway.redis.lrange(door.keys.key("wait"), 0, -1) == [b"3", b"2", b"1"]  # type: ignore[misc]


async def test_braces_belong_to_the_name(real_make: Make) -> None:
    door = Door(real_make(bullmq_add_queues=",".join(QUEUES)), QUEUES[1])
    job_id = await door.add()
    assert await door.gateway.redis.exists(f"bull:{{video}}:{job_id}")
    assert not await door.gateway.redis.exists("bull:video:id")
    assert (await door.get(job_id)).json()["queue"] == "{video}"


async def test_the_prefix_is_a_setting(real_make: Make) -> None:
    door = Door(real_make(bullmq_add_queues="video", bullmq_prefix="mine"))
    await door.add()
    assert await door.gateway.redis.exists(BullKeys("video", "mine").job("1"))


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"backoff": 250, "attempts": 2}, {"backoff": {"type": "fixed", "delay": 250}}),
    ({"backoff": {"type": "fixed", "delay": 9, "jitter": 0.5}}, {}),
    ({"removeOnComplete": True, "removeOnFail": 5}, {}),
    ({"removeOnComplete": {"age": 60, "count": 3}}, {}),
    ({"lifo": True, "stackTraceLimit": 2}, {}),
    ({"keepLogs": 7}, {"kl": 7}),
    ({"deduplication": {"id": "d", "ttl": 500}}, {"de": {"id": "d", "ttl": 500}}),
]


async def test_options_are_stored_as_workers_read_them(door: Door) -> None:
    for opts, stored in OPTIONS:
        found = json.loads((await door.fields(await door.add(opts)))["opts"])
        assert {name: found[name] for name in stored or opts} == (stored or opts)


async def test_a_delayed_job_waits_for_its_time(door: Door) -> None:
    job_id = await door.add({"delay": 60_000, "priority": 5})
    assert await door.gateway.redis.zrange(door.keys.key("delayed"), 0, -1) == [job_id.encode()]
    view = (await door.get(job_id)).json()
    assert (view["state"], view["delay"], view["priority"]) == ("delayed", 60_000, 5)


async def test_an_id_of_ones_own_is_added_once(door: Door) -> None:
    first = await door.post({"name": "a", "opts": {"jobId": "report-7"}})
    again = await door.post({"name": "a", "opts": {"jobId": "report-7"}})
    assert first.json() == {"id": "report-7", "queue": "video", "outcome": "added"}
    assert again.json() == {"id": "report-7", "queue": "video", "outcome": "duplicate"}
    assert await door.gateway.redis.llen(door.keys.key("wait")) == 1  # type: ignore[misc]


async def test_one_of_a_deduplication_stands_for_the_others(door: Door) -> None:
    opts = {"deduplication": {"id": "daily"}}
    first = await door.post({"name": "a", "opts": opts})
    again = await door.post({"name": "a", "opts": opts})
    assert first.json()["outcome"] == "added"
    assert again.json() == {**first.json(), "outcome": "deduplicated"}
    assert await door.gateway.redis.llen(door.keys.key("wait")) == 1  # type: ignore[misc]


async def test_data_is_passed_on_as_it_is(door: Door) -> None:
    for data in (None, 7, "text", [1, 2], {"ä": "日本語 🎬", "n": 1 << 60}, {"t": "x" * 199_900}):
        job_id = await door.add(data={"is": data})
        raw = (await door.fields(job_id))["data"]
        assert json.loads(raw) == {"is": data}
        assert "\\u" not in raw
        assert (await door.get(job_id)).json()["data"] == {"is": data}


async def test_data_may_be_left_out(door: Door) -> None:
    assert (await door.post({"name": "a"})).status == 202
    assert (await door.fields("1"))["data"] == "{}"


async def test_a_full_queue_turns_away_and_says_when_to_come_back(real_make: Make) -> None:
    door = Door(real_make(bullmq_add_queues="video", bullmq_max_unfinished=3))
    await door.add()
    await door.add({"priority": 1})
    await door.add({"delay": 60_000, "jobId": "mine"})
    refused = await door.post({"name": "a"})
    problem = check_problem(refused, 429, "queue_full")
    assert "3 jobs" in problem["detail"]
    assert int(refused.header("retry-after") or 0) >= 1
    assert (await door.fields("4")) == {}
    # A duplicate does not count against the limit.
    again = await door.post({"name": "a", "opts": {"jobId": "mine"}})
    assert again.json()["outcome"] == "duplicate"
    await door.delete("1")
    assert (await door.post({"name": "a"})).status == 202

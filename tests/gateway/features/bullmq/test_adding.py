"""Jobs are added exactly as BullMQ's own `add` does."""

from __future__ import annotations

import json
from typing import Any

from common.contracts.bullmq import BullKeys
from tests.gateway.conftest import Make, check_problem
from tests.gateway.features.bullmq.kit import QUEUES, QueueApi


async def test_a_prioritized_job_is_stored_with_its_events(api: QueueApi) -> None:
    opts = {"priority": 1, "attempts": 3, "backoff": {"type": "exponential", "delay": 1000}}
    answer = await api.post({"name": "video-generation", "data": {"videoId": "v"}, "opts": opts})
    assert answer.status == 202
    assert answer.json() == {"id": "1", "queue": "video", "outcome": "added"}
    assert answer.header("location") == "/v1/bullmq/video/jobs/1"
    fields = await api.fields("1")
    assert fields["name"] == "video-generation"
    assert json.loads(fields["data"]) == {"videoId": "v"}
    stored = json.loads(fields["opts"])
    assert {name: stored[name] for name in opts} == opts
    assert fields["priority"] == "1"
    redis = api.gateway.redis
    assert await redis.zrange(api.keys.key("prioritized"), 0, -1) == [b"1"]
    events = [entry[b"event"] for _, entry in await redis.xrange(api.keys.events)]
    assert events == [b"added", b"waiting"]


async def test_ids_are_numbers_of_bullmq(api: QueueApi) -> None:
    assert [await api.add() for _ in range(3)] == ["1", "2", "3"]
    assert await api.gateway.redis.lrange(api.keys.key("wait"), 0, -1) == [b"3", b"2", b"1"]  # type: ignore[misc]


async def test_braces_are_part_of_the_queue_name(real_make: Make) -> None:
    api = QueueApi(real_make(bullmq_add_queues=",".join(QUEUES)), QUEUES[1])
    job_id = await api.add()
    assert await api.gateway.redis.exists(f"bull:{{video}}:{job_id}")
    assert not await api.gateway.redis.exists("bull:video:id")
    assert (await api.get(job_id)).json()["queue"] == "{video}"


async def test_the_prefix_is_a_setting(real_make: Make) -> None:
    api = QueueApi(real_make(bullmq_add_queues="video", bullmq_prefix="mine"))
    await api.add()
    assert await api.gateway.redis.exists(BullKeys("video", "mine").job("1"))


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"backoff": 250, "attempts": 2}, {"backoff": {"type": "fixed", "delay": 250}}),
    ({"backoff": {"type": "fixed", "delay": 9, "jitter": 0.5}}, {}),
    ({"removeOnComplete": True, "removeOnFail": 5}, {}),
    ({"removeOnComplete": {"age": 60, "count": 3}}, {}),
    ({"lifo": True, "stackTraceLimit": 2}, {}),
    ({"keepLogs": 7}, {"kl": 7}),
    ({"deduplication": {"id": "d", "ttl": 500}}, {"de": {"id": "d", "ttl": 500}}),
]


async def test_options_are_stored_as_workers_read_them(api: QueueApi) -> None:
    for opts, stored in OPTIONS:
        found = json.loads((await api.fields(await api.add(opts)))["opts"])
        assert {name: found[name] for name in stored or opts} == (stored or opts)


async def test_a_delayed_job_waits_for_its_time(api: QueueApi) -> None:
    job_id = await api.add({"delay": 60_000, "priority": 5})
    assert await api.gateway.redis.zrange(api.keys.key("delayed"), 0, -1) == [job_id.encode()]
    view = (await api.get(job_id)).json()
    assert (view["state"], view["delay"], view["priority"]) == ("delayed", 60_000, 5)


async def test_a_custom_id_is_added_once(api: QueueApi) -> None:
    first = await api.post({"name": "a", "opts": {"jobId": "report-7"}})
    again = await api.post({"name": "a", "opts": {"jobId": "report-7"}})
    assert first.json() == {"id": "report-7", "queue": "video", "outcome": "added"}
    assert again.json() == {"id": "report-7", "queue": "video", "outcome": "duplicate"}
    assert await api.gateway.redis.llen(api.keys.key("wait")) == 1  # type: ignore[misc]


async def test_a_deduplicated_job_is_added_once(api: QueueApi) -> None:
    opts = {"deduplication": {"id": "daily"}}
    first = await api.post({"name": "a", "opts": opts})
    again = await api.post({"name": "a", "opts": opts})
    assert first.json()["outcome"] == "added"
    assert again.json() == {**first.json(), "outcome": "deduplicated"}
    assert await api.gateway.redis.llen(api.keys.key("wait")) == 1  # type: ignore[misc]


async def test_data_is_stored_unchanged(api: QueueApi) -> None:
    for data in (None, 7, "text", [1, 2], {"ä": "日本語 🎬", "n": 1 << 60}, {"t": "x" * 199_900}):
        job_id = await api.add(data={"is": data})
        raw = (await api.fields(job_id))["data"]
        assert json.loads(raw) == {"is": data}
        assert "\\u" not in raw
        assert (await api.get(job_id)).json()["data"] == {"is": data}


async def test_data_is_optional(api: QueueApi) -> None:
    assert (await api.post({"name": "a"})).status == 202
    assert (await api.fields("1"))["data"] == "{}"


async def test_a_full_queue_rejects_jobs_with_retry_after(real_make: Make) -> None:
    api = QueueApi(real_make(bullmq_add_queues="video", bullmq_max_unfinished=3))
    await api.add()
    await api.add({"priority": 1})
    await api.add({"delay": 60_000, "jobId": "mine"})
    refused = await api.post({"name": "a"})
    problem = check_problem(refused, 429, "queue_full")
    assert "3 jobs" in problem["detail"]
    assert int(refused.header("retry-after") or 0) >= 1
    assert (await api.fields("4")) == {}
    # A duplicate does not count against the limit.
    again = await api.post({"name": "a", "opts": {"jobId": "mine"}})
    assert again.json()["outcome"] == "duplicate"
    await api.delete("1")
    assert (await api.post({"name": "a"})).status == 202

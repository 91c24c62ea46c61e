"""Pausing a queue: a key, and a message on the control channel."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.queue import paused_key
from sluice.common.errors import CorruptKey
from sluice.common.jobs.pause import MAX_TEXT_CHARS, Pause, PauseStore, parse_pause
from tests.support.servers import Backend
from tests.support.waiting import eventually


async def test_a_queue_is_paused_once_and_resumed_once(backend: Backend, keys: JobKeys) -> None:
    redis, pauses = backend.client(), PauseStore(backend.client(), keys)
    first = await pauses.pause("local", "tea")
    assert (first.by, first.why) == ("local", "tea")
    assert await pauses.pause("other", "more tea") == first
    raw = await redis.get(paused_key(keys.queue))
    assert json.loads(raw) == {"since_ms": first.since_ms, "by": "local", "why": "tea"}
    assert parse_pause(raw) == first
    assert await redis.ttl(paused_key(keys.queue)) == -1, "it outlasts everything"
    assert await redis.exists(keys.probe) == 0
    assert await pauses.resume()
    assert not await pauses.resume()
    assert parse_pause(await redis.get(paused_key(keys.queue))) is None


async def test_workers_get_a_message(backend: Backend, keys: JobKeys) -> None:
    heard: list[bytes] = []
    listening = backend.wire(on_message=heard.append)
    await listening.execute_command("SUBSCRIBE", keys.control)
    pauses = PauseStore(backend.client(), keys)
    await pauses.pause("local", "")
    await pauses.resume()
    await eventually(lambda: heard == [paused_key(keys.queue).encode()] * 2)


@pytest.mark.real_redis
async def test_a_full_redis_can_still_be_paused(backend: Backend, keys: JobKeys) -> None:
    redis: Any = backend.client()
    await redis.config_set("maxmemory", "1")
    try:
        pauses = PauseStore(backend.client(), keys)
        assert (await pauses.pause("local", "out of memory")).why == "out of memory"
    finally:
        await redis.config_set("maxmemory", "0")


async def test_a_key_of_the_wrong_type_is_not_touched(backend: Backend, keys: JobKeys) -> None:
    redis: Any = backend.client()
    await redis.sadd(paused_key(keys.queue), "foreign")
    with pytest.raises(CorruptKey):
        await PauseStore(backend.client(), keys).pause("local", "")
    assert await redis.smembers(paused_key(keys.queue)) == {b"foreign"}


@pytest.mark.parametrize("raw", [b"", b"x", b"[]", b'{"since_ms":"x","by":7}', b'{"since_ms":-1}'])
def test_any_value_means_paused(raw: bytes) -> None:
    assert parse_pause(raw) == Pause(0)


def test_texts_are_bounded() -> None:
    assert parse_pause(json.dumps({"why": "x" * 9999}).encode()) == Pause(
        0, "", "x" * MAX_TEXT_CHARS
    )

"""Processes of one Redis must agree on schema version and partitions, or do not start."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import redis

from common.contracts.jobs import SCHEMA_VERSION, JobKeys
from common.errors import EXIT_CONFIG, UnsuitableRedis
from common.process import schema_version
from common.redis.partitions import Partitions
from tests.support.servers import Backend, RealServer
from tests.support.waiting import eventually

ONE, FOUR, EIGHT = (Partitions.create(JobKeys(), count) for count in (1, 4, 8))


@pytest.fixture
def client(backend: Backend) -> redis.Redis:
    return backend.sync_client()


def written(client: redis.Redis, partitions: Partitions) -> object:
    return json.loads(client.get(partitions.home.schema) or b"null")


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("partitions", [ONE, FOUR])
def test_the_first_process_writes_it_once(client: redis.Redis, partitions: Partitions) -> None:
    schema_version.check_schema(client, partitions)
    expected = {"version": SCHEMA_VERSION, "partitions": partitions.count}
    assert written(client, partitions) == expected
    schema_version.check_schema(client, partitions)
    assert written(client, partitions) == expected


@pytest.mark.fakeredis_only
def test_a_newer_schema_is_refused_with_the_fix(client: redis.Redis) -> None:
    client.set(ONE.home.schema, json.dumps({"version": SCHEMA_VERSION + 1, "partitions": 1}))
    with pytest.raises(UnsuitableRedis, match=r"version 2, .* supports 1; install") as refused:
        schema_version.check_schema(client, ONE)
    assert refused.value.exit_code == EXIT_CONFIG


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(("first", "second"), [(ONE, FOUR), (FOUR, ONE), (FOUR, EIGHT)])
def test_another_number_of_partitions_is_refused(
    client: redis.Redis, first: Partitions, second: Partitions
) -> None:
    schema_version.check_schema(client, first)
    stored = client.exists(second.home.schema)  # several partitions have the same home
    refused = rf"QUEUE_PARTITIONS is {second.count}, .* divided into {first.count};"
    with pytest.raises(UnsuitableRedis, match=refused):
        schema_version.check_schema(client, second)
    assert client.exists(second.home.schema) == stored
    client.delete(first.home.schema)
    schema_version.check_schema(client, second)


@pytest.mark.fakeredis_only
def test_an_older_or_invalid_schema_is_accepted(client: redis.Redis) -> None:
    older = b'{"version":%d,"partitions":1}' % (SCHEMA_VERSION - 1)
    invalid = (b"", b"x", b"[]", b"{}", b'{"version":"9","partitions":null}')
    for stored in (older, *invalid):
        client.set(ONE.home.schema, stored)
        schema_version.check_schema(client, ONE)


async def test_a_redis_that_answers_later_is_checked_then(
    real_server: Callable[[str], RealServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = real_server("redis-bundled")
    server.client.flushall()
    monkeypatch.setattr(schema_version, "RETRY_INTERVAL_S", 0.01)
    refused: list[UnsuitableRedis] = []
    schema_version.ensure_compatible(server.url, ONE, refused.append, answers=False)
    await eventually(lambda: server.client.exists(ONE.home.schema))
    server.client.set(ONE.home.schema, json.dumps({"version": 99}))
    schema_version.ensure_compatible(server.url, ONE, refused.append, answers=False)
    await eventually(lambda: refused)
    assert "99" in str(refused[0])
    with pytest.raises(UnsuitableRedis):
        schema_version.ensure_compatible(server.url, ONE)


def test_without_permission_the_process_starts(real_server: Callable[[str], RealServer]) -> None:
    server = real_server("redis-bundled")
    server.client.set(ONE.home.schema, "x")
    server.client.delete(ONE.home.schema)
    server.client.lpush(ONE.home.schema, "x")
    schema_version.ensure_compatible(server.url, ONE)  # WRONGTYPE
    server.client.flushall()

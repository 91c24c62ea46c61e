"""An unsuitable Redis is refused at start, with the fix; so is another schema or partitioning."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from sluice.common.contracts.jobs import SCHEMA_VERSION, JobKeys
from sluice.common.errors import EXIT_CONFIG, UnsuitableRedis
from sluice.common.process import preflight, schema_version
from sluice.common.redis.addresses import Topology
from sluice.common.redis.partitions import Partitions
from tests.support.servers import REAL, Backend, RealServer
from tests.support.waiting import eventually

SOUND = {
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "appendonly": "yes",
    "appendfsync": "always",
}


class Server:
    """Answers INFO and CONFIG GET with given values."""

    def __init__(self, version: str = "7.0.15", role: str = "master", **settings: str) -> None:
        self._info = {"redis_version": version, "role": role}
        self._settings = {**SOUND, **{key.replace("_", "-"): v for key, v in settings.items()}}

    def info(self) -> dict[str, Any]:
        return self._info

    def config_get(self, name: str) -> dict[str, str]:
        return {name: self._settings[name]}


def findings(**settings: str) -> list[preflight.Finding]:
    return preflight.check_server(Server(**settings))  # type: ignore[arg-type]


def test_a_well_configured_server_has_no_findings() -> None:
    assert findings() == []
    assert findings(version="8.4.0", appendfsync="everysec") == []
    assert findings(maxmemory_policy="allkeys-lru") == []  # without maxmemory nothing is evicted


FULL = {"maxmemory": "1000000"}


@pytest.mark.parametrize(
    ("settings", "level", "fix"),
    [
        *(
            ({**FULL, "maxmemory_policy": policy}, logging.ERROR, "maxmemory-policy noeviction")
            for policy in ("allkeys-lru", "volatile-ttl", "allkeys-random")
        ),
        ({"appendonly": "no"}, logging.WARNING, "appendonly yes"),
        ({"appendfsync": "no"}, logging.WARNING, "appendfsync everysec"),
        ({"role": "slave"}, logging.ERROR, "REDIS_URL"),
    ],
)
def test_a_finding_names_the_fix(settings: dict[str, str], level: int, fix: str) -> None:
    [finding] = findings(**settings)
    assert finding.level == level
    assert fix in finding.text
    assert settings.get("maxmemory_policy", "") in finding.text


def test_fewer_replicas_than_required_are_an_error() -> None:
    server: Any = Server()
    server.info()["connected_slaves"] = 1
    assert preflight.check_server(server, Topology.SENTINEL, 1) == []
    [(level, text)] = preflight.check_server(server, None, 2)
    assert level == logging.ERROR
    assert "WAIT_REPLICAS is 2, but only 1 replica is connected" in text


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14", "2.8"])
def test_a_too_old_server_is_refused(version: str) -> None:
    with pytest.raises(UnsuitableRedis, match=version) as refused:
        findings(version=version)
    assert refused.value.exit_code == EXIT_CONFIG


@pytest.fixture
def server(request: pytest.FixtureRequest, real_server: Callable[[str], RealServer]) -> RealServer:
    return real_server(request.param)


@pytest.fixture
def changed(server: RealServer) -> Iterator[redis.Redis]:
    """A real server whose settings are restored afterwards."""
    before = {name: server.client.config_get(name)[name] for name in SOUND}
    yield server.client
    for name, value in before.items():
        server.client.config_set(name, value)


@pytest.mark.parametrize("server", REAL, indirect=True)
def test_a_real_server_is_understood(changed: redis.Redis) -> None:
    changed.config_set("maxmemory", "100mb")
    changed.config_set("maxmemory-policy", "allkeys-lfu")
    levels = [finding.level for finding in preflight.check_server(changed)]
    assert logging.ERROR in levels


@contextmanager
def restricted(client: redis.Redis, *rights: str) -> Iterator[redis.Redis]:
    """A client of a user with these rights only."""
    client.execute_command("ACL", "SETUSER", "plain", "on", ">secret", *rights)
    pool = client.connection_pool
    login = {"username": "plain", "password": "secret"}
    options = {**pool.connection_kwargs, **login}
    limited = redis.ConnectionPool(connection_class=pool.connection_class, **options)
    with redis.Redis(connection_pool=limited) as plain:
        yield plain
    client.execute_command("ACL", "DELUSER", "plain")


@pytest.mark.parametrize("server", REAL, indirect=True)
def test_a_server_that_hides_its_settings_is_an_info(server: RealServer) -> None:
    with restricted(server.client, "~*", "+@all", "-config", "-info") as quiet:
        [(level, text)] = preflight.check_server(quiet)
    assert (level, "noeviction" in text) == (logging.INFO, True)


@pytest.mark.parametrize("server", REAL, indirect=True)
def test_a_user_without_config_uses_info_only(changed: redis.Redis) -> None:
    changed.execute_command("ACL", "LOG", "RESET")
    changed.config_set("maxmemory", "100mb")
    changed.config_set("maxmemory-policy", "allkeys-lfu")
    with restricted(changed, "-@all", "+info", "+client") as plain:
        found = preflight.check_server(plain)
        assert any("allkeys-lfu" in text for _, text in found)
        assert any("appendonly yes" in text for _, text in found)
        assert changed.execute_command("ACL", "LOG") == []


async def test_a_server_that_does_not_answer_is_checked_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([redis.ConnectionError(), redis.ConnectionError(), Server(appendonly="no")])

    def connect(url: str, **_: Any) -> Any:
        answer = next(answers)

        class Client:
            def close(self) -> None: ...

            def __getattr__(self, name: str) -> Any:
                if isinstance(answer, Exception):
                    raise answer
                return getattr(answer, name)

        return Client()

    monkeypatch.setattr(preflight, "sync_client", connect)
    monkeypatch.setattr(preflight, "RETRY_INTERVAL_S", 0.001)
    with caplog.at_level(logging.INFO):
        preflight.check_redis("redis://nowhere")
        await eventually(lambda: "appendonly yes" in caplog.text)
    assert "does not answer yet" in caplog.text


# -- The schema: processes of one Redis agree on its version and on the partitions ----------------


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

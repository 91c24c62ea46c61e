"""Problems of a Redis are logged at start with the fix; an unsuitable one is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from common.errors import EXIT_CONFIG, UnsuitableRedis
from common.process import preflight
from common.redis.addresses import Topology
from tests.support.servers import REAL, RealServer
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

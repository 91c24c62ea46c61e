"""Redis URLs in settings: one server, a Sentinel set, a Cluster; and their restrictions."""

from __future__ import annotations

import pytest

from common.errors import SettingsError
from common.observability.logs import mask
from common.settings.base import load_settings
from common.settings.gateway import GatewaySettings
from common.settings.worker import WorkerSettings
from ops.redis_target import RedisTarget, is_url, mask_password

SENTINEL = "redis+sentinel://u:hunter2@one:1,two:2/mymaster?sentinel_password=hunter3"
CLUSTER = "redis+cluster://u:hunter2@one:1,two:2"


@pytest.mark.parametrize("kind", [GatewaySettings, WorkerSettings])
@pytest.mark.parametrize("url", ["unix:///run/redis.sock", "rediss://one:6380/1", SENTINEL])
def test_a_valid_url_is_unchanged(
    kind: type[GatewaySettings | WorkerSettings], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    monkeypatch.setenv("BULLMQ_REDIS_URL", url)
    assert load_settings(kind).redis_url == load_settings(kind).bullmq_redis_url == url


@pytest.mark.parametrize("kind", [GatewaySettings, WorkerSettings])
def test_a_cluster_needs_partitions(
    kind: type[GatewaySettings | WorkerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", CLUSTER)
    with pytest.raises(SettingsError, match="QUEUE_PARTITIONS to 2 or more") as caught:
        load_settings(kind)
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("QUEUE_PARTITIONS", "4")
    assert load_settings(kind).redis_url == CLUSTER


@pytest.mark.parametrize(
    ("kind", "queues"), [(GatewaySettings, "BULLMQ_ADD_QUEUES"), (WorkerSettings, "BULLMQ_QUEUES")]
)
def test_bullmq_queues_cannot_be_on_a_cluster(
    kind: type[GatewaySettings | WorkerSettings], queues: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", CLUSTER)
    monkeypatch.setenv("QUEUE_PARTITIONS", "4")
    monkeypatch.setenv(queues, "mails")
    with pytest.raises(SettingsError, match="set BULLMQ_REDIS_URL"):
        load_settings(kind)
    monkeypatch.setenv("BULLMQ_REDIS_URL", CLUSTER)
    with pytest.raises(SettingsError, match="cannot be on a Redis Cluster"):
        load_settings(kind)
    monkeypatch.setenv("BULLMQ_REDIS_URL", SENTINEL)
    assert load_settings(kind).bullmq_redis_url == SENTINEL


@pytest.mark.parametrize("name", ["REDIS_URL", "BULLMQ_REDIS_URL"])
@pytest.mark.parametrize("url", ["redis+sentinel://u:hunter2@one", "redis+sentinel://u:hun@ter2"])
def test_a_bad_url_is_refused_without_its_password(
    name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, url)
    with pytest.raises(SettingsError, match=name) as caught:
        load_settings(WorkerSettings)
    assert "hun" not in str(caught.value)


@pytest.mark.parametrize("url", [SENTINEL, CLUSTER])
def test_passwords_of_several_hosts_are_masked(url: str) -> None:
    for shown in (mask(f"no way to {url} today"), mask_password(url)):
        assert "hunter" not in shown
        assert "u:***@one:1,two:2" in shown


def test_several_hosts_are_allowed_on_the_command_line() -> None:
    nobody = "redis+cluster://127.0.0.1:1"
    assert is_url(nobody)
    assert not is_url("redis+cluster://127.0.0.1:99999")
    target = RedisTarget(nobody, "--redis")
    assert target.is_local
    assert target.cli == "redis-cli -p 1"
    assert target.socket_path is None

"""URLs of servers, Sentinel sets and Clusters, and their restrictions in settings."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import parse_url

from sluice.common.errors import SettingsError
from sluice.common.observability.logs import mask
from sluice.common.redis.addresses import (
    Node,
    Topology,
    is_cluster,
    is_multi_host,
    keyslot,
    parse_address,
    url_for_tag,
)
from sluice.common.settings.base import load_settings
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.worker import WorkerSettings
from sluice.ops.redis_target import RedisTarget, is_url, mask_password

CLUSTER = "redis+cluster://one:7000,two:7001"


def test_a_sentinel_url() -> None:
    address = parse_address(
        "redis+sentinel://sluice:p%40ss@one,two:26380/mymaster/3?sentinel_password=guard"
    )
    assert address.kind is Topology.SENTINEL
    assert address.seeds == (Node("one", 26379), Node("two", 26380))
    assert (address.username, address.password) == ("sluice", "p@ss")
    assert (address.service, address.db) == ("mymaster", 3)
    data = parse_url(address.data_url(Node("three", 6380)))
    assert (data["host"], data["port"], data["db"]) == ("three", 6380, 3)
    assert (data["username"], data["password"]) == ("sluice", "p@ss")
    asking = parse_url(address.discovery_url(Node("one", 26379)))
    assert asking["password"] == "guard"
    assert asking["db"] == 0
    assert "username" not in asking


def test_a_cluster_url() -> None:
    address = parse_address("rediss+cluster://:secret@[::1]:7000,node-2.lan?ssl_cert_reqs=none")
    assert address.kind is Topology.CLUSTER
    assert address.seeds == (Node("::1", 7000), Node("node-2.lan", 6379))
    assert address.username is None
    url = address.data_url(address.seeds[0])
    assert url == "rediss://:secret@[::1]:7000/0?ssl_cert_reqs=none"
    assert parse_url(url)["host"] == "::1"
    assert address.discovery_url(address.seeds[0]) == url
    # The password is not shown.
    assert "hunter2" not in repr(parse_address("redis+cluster://u:hunter2@one"))


def test_a_tag_selects_the_owner_of_its_slot() -> None:
    assert url_for_tag(CLUSTER, "{3}:") == f"{CLUSTER}#{{3}}"
    assert url_for_tag(url_for_tag(CLUSTER, "{3}:"), "{5}") == f"{CLUSTER}#{{5}}"
    tagged = parse_address(url_for_tag(CLUSTER, "{3}:"))
    assert tagged.slot == keyslot("{3}:jobs:stream") == keyslot("3")
    assert parse_address(CLUSTER).slot == keyslot("{0}:")
    assert url_for_tag(CLUSTER, "") == CLUSTER
    # All of them share one set of servers.
    assert tagged.server_set == parse_address(url_for_tag(CLUSTER, "{2}")).server_set
    # As CLUSTER KEYSLOT of a real server reports.
    assert keyslot("123456789") == 12739
    assert keyslot("foo{hash_tag}") == keyslot("hash_tag") == 2515
    assert keyslot("{}:not a tag") != keyslot("")


@pytest.mark.parametrize(
    "url", ["redis://one:6379/0", "unix:///run/redis.sock", "redis+sentinel://one/mymaster"]
)
def test_a_tag_has_no_effect_elsewhere(url: str) -> None:
    assert url_for_tag(url, "{3}:") == url
    assert not is_cluster(url)


def test_which_urls_have_several_hosts() -> None:
    assert is_multi_host(CLUSTER)
    assert is_cluster(CLUSTER)
    assert is_multi_host("rediss+sentinel://one/mymaster")
    assert not is_multi_host("redis://one")
    # They are allowed on the command line.
    nobody = "redis+cluster://127.0.0.1:1"
    assert is_url(nobody)
    assert not is_url("redis+cluster://127.0.0.1:99999")
    target = RedisTarget(nobody, "--redis")
    assert target.is_local
    assert target.cli == "redis-cli -p 1"
    assert target.socket_path is None


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://u:hunter2@one", "must start with"),
        ("redis+sentinel://u:hunter2@one", "name of the master"),
        ("redis+sentinel://u:hunter2@one/mymaster/x", "must be a number"),
        ("redis+sentinel://u:hunter2@one:99999/mymaster", "between 1 and 65535"),
        ("redis+sentinel://u:hunter2@/mymaster", "one of the hosts"),
        ("redis+sentinel://u:hunter2@one,,two/mymaster", "one of the hosts"),
        ("redis+sentinel://u:hun@ter2@one/mymaster", "more than one @"),
        ("redis+sentinel://u:hunter2/@one/mymaster", "one of the hosts"),
        ("redis+sentinel://u:hunter2@one/mymaster#{3}", "unexpected #"),
        ("redis+sentinel://one/mymaster?hunter2=hunter2", "unknown option"),
        ("redis+sentinel://one/mymaster?hunter2", "cannot be read"),
        ("redis+cluster://u:hunter2@one/1", "database 0 only"),
        ("redis+cluster://u:hunter2@one#3", "unexpected #"),
        ("redis+cluster://u:hunter2@one#{}", "unexpected #"),
        ("redis+cluster://one?sentinel_password=hunter2", "redis+sentinel:// only"),
        ("redis+cluster://one?ssl_cert_reqs=hunter2", "needs rediss+cluster"),
        ("redis+cluster://u:hunter2@[::1", "one of the hosts"),
    ],
)
def test_a_bad_url_is_refused_without_its_password(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_address(url)
    assert complaint in str(caught.value)
    assert "hunter2" not in str(caught.value)


# -- Redis URLs in settings: one server, a Sentinel set, a Cluster; and their restrictions --------


SENTINEL_URL = "redis+sentinel://u:hunter2@one:1,two:2/mymaster?sentinel_password=hunter3"
CLUSTER_URL = "redis+cluster://u:hunter2@one:1,two:2"


@pytest.mark.parametrize("kind", [GatewaySettings, WorkerSettings])
@pytest.mark.parametrize("url", ["unix:///run/redis.sock", "rediss://one:6380/1", SENTINEL_URL])
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
    monkeypatch.setenv("REDIS_URL", CLUSTER_URL)
    with pytest.raises(SettingsError, match="QUEUE_PARTITIONS to 2 or more") as caught:
        load_settings(kind)
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("QUEUE_PARTITIONS", "4")
    assert load_settings(kind).redis_url == CLUSTER_URL


@pytest.mark.parametrize(
    ("kind", "queues"), [(GatewaySettings, "BULLMQ_ADD_QUEUES"), (WorkerSettings, "BULLMQ_QUEUES")]
)
def test_bullmq_queues_cannot_be_on_a_cluster(
    kind: type[GatewaySettings | WorkerSettings], queues: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", CLUSTER_URL)
    monkeypatch.setenv("QUEUE_PARTITIONS", "4")
    monkeypatch.setenv(queues, "mails")
    with pytest.raises(SettingsError, match="set BULLMQ_REDIS_URL"):
        load_settings(kind)
    monkeypatch.setenv("BULLMQ_REDIS_URL", CLUSTER_URL)
    with pytest.raises(SettingsError, match="cannot be on a Redis Cluster"):
        load_settings(kind)
    monkeypatch.setenv("BULLMQ_REDIS_URL", SENTINEL_URL)
    assert load_settings(kind).bullmq_redis_url == SENTINEL_URL


@pytest.mark.parametrize("name", ["REDIS_URL", "BULLMQ_REDIS_URL"])
@pytest.mark.parametrize("url", ["redis+sentinel://u:hunter2@one", "redis+sentinel://u:hun@ter2"])
def test_settings_refuse_bad_urls(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, url)
    with pytest.raises(SettingsError, match=name) as caught:
        load_settings(WorkerSettings)
    assert "hun" not in str(caught.value)


@pytest.mark.parametrize("url", [SENTINEL_URL, CLUSTER_URL])
def test_passwords_of_several_hosts_are_masked(url: str) -> None:
    for shown in (mask(f"no way to {url} today"), mask_password(url)):
        assert "hunter" not in shown
        assert "u:***@one:1,two:2" in shown

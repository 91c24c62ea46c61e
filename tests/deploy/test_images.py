"""Images on an installed machine: the shared directory, and permission to read the results."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.installer.host import Host
from deploy.installer.layout import GATEWAY, WORKER, Layout
from deploy.installer.redis_server import RedisServer
from deploy.installer.units import gateway_drop_in
from tests.deploy.test_acl import in_script, is_refused
from tests.support.deploy.acl import InstalledRedis
from tests.support.deploy.fake_machine import FakeMachine

RESULTS, QUEUE = "image:result", "jobs:stream"
KEYS = [
    ("HSET", "image:status:x", "stage", "queued"),
    ("SET", "image:upload:x", "claimed", "NX", "EX", "3600"),
    ("HSET", "image:record:x", "status", "queued"),
    ("ZADD", "image:inflight", "1", "x"),
    ("XADD", RESULTS, "MAXLEN", "~", "1000", "*", "image_id", "x"),
    ("XADD", "image:result:dlq", "*", "image_id", "x"),
]
GROUP = [
    ("XGROUP", "CREATE", RESULTS, "api-workers", "0"),
    ("XREADGROUP", "GROUP", "api-workers", "me", "STREAMS", RESULTS, ">"),
    ("XAUTOCLAIM", RESULTS, "api-workers", "me", "0", "0"),
    ("XINFO", "CONSUMERS", RESULTS, "api-workers"),
    ("XGROUP", "DELCONSUMER", RESULTS, "api-workers", "me"),
]


def test_permissions_of_gateway_and_worker(installed_redis: InstalledRedis) -> None:
    installed_redis.admin.flushall()
    for role in (GATEWAY, WORKER):
        client = installed_redis.client(role)
        for command in KEYS:
            assert not is_refused(client, *command), command
            assert not is_refused(client, *in_script(*command)), command
        assert is_refused(client, "SET", "images:x", "1")
    assert is_refused(installed_redis.client(WORKER), "GET", "idempotency.img:k")
    assert not is_refused(installed_redis.client(GATEWAY), "GET", "idempotency.img:k")


@pytest.mark.parametrize("command", GROUP, ids=" ".join)
def test_gateway_may_read_only_the_results_as_a_group(
    installed_redis: InstalledRedis, command: tuple[str, ...]
) -> None:
    admin = installed_redis.admin
    admin.flushall()
    admin.xadd(RESULTS, {"image_id": "x"})
    if command[1] != "CREATE":
        admin.xgroup_create(RESULTS, "api-workers", "0")
    gateway = installed_redis.client(GATEWAY)
    assert is_refused(gateway, *command) == (not installed_redis.has_selectors)
    assert not is_refused(installed_redis.client(WORKER), *command)


def test_image_consumer_is_off_before_redis_7(tmp_path: Path) -> None:
    host = Host(Layout(tmp_path))
    old, new = (RedisServer(Path("/usr/bin/redis-server"), (n, 2, 0), True) for n in (6, 7))
    path, content = gateway_drop_in(host, old)
    assert path.name == "50-install.conf"
    assert path.parent.name == "redis-gateway.service.d"
    assert content is not None
    assert "\n[Service]\nEnvironment=IMAGE_CONSUMER=false\n" in content
    assert gateway_drop_in(host, new) == (path, None)


def test_gateway_and_workers_share_a_directory(machine: FakeMachine) -> None:
    machine.install()
    for name in ("", "/spool", "/store"):
        assert machine.mode(f"/var/lib/sluice-images{name}") == 0o770
    for unit in ("redis-gateway.service", "redis-worker@.service"):
        text = (machine.layout.units / unit).read_text()
        assert "Environment=IMAGE_SPOOL_DIR=/var/lib/sluice-images/spool\n" in text
        assert "Environment=IMAGE_STORE_DIR=/var/lib/sluice-images/store\n" in text
        assert "ReadWritePaths=-/var/lib/sluice-images\n" in text


def test_only_a_purge_removes_images(machine: FakeMachine) -> None:
    machine.install()
    image = machine.layout.images / "store" / "images" / "x.webp"
    image.parent.mkdir()
    image.write_bytes(b"RIFF")
    assert machine.run("uninstall") == 0
    assert image.is_file()
    assert str(machine.layout.images) in machine.output
    machine.install()
    assert machine.run("uninstall", "--purge", "--yes") == 0
    assert not machine.layout.images.exists()


def test_uninstall_removes_an_empty_image_store(machine: FakeMachine) -> None:
    machine.install()
    (machine.layout.images / "store" / ".store-id").write_text("0123456789abcdef")
    assert machine.run("uninstall") == 0
    assert not machine.layout.images.exists()

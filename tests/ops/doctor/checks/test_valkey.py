"""Checks of a Valkey server, which reports 7.2.4 as the version of Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.doctor.checks import model, redis
from ops.doctor.finding import Health
from ops.doctor.machine import Machine
from ops.doctor.redis_server import RedisServer
from ops.redis_target import RedisTarget
from tests.ops.doctor.machines import finding_of, make_machine, write

LOCAL = RedisTarget("redis://127.0.0.1:6379", "--redis")


class Valkey(RedisServer):
    answers = True
    info = {  # noqa: RUF012
        "redis_version": "7.2.4",
        "server_name": "valkey",
        "valkey_version": "9.1.0",
    }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, redis=Valkey(LOCAL))


def test_the_version_is_that_of_valkey(machine: Machine) -> None:
    found = finding_of(redis.version, machine)
    assert found.status is Health.OK
    assert found.seen == "Valkey 9.1.0"


@pytest.mark.parametrize("numpy", [True, False])
def test_valkey_has_no_vector_sets(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, numpy: bool
) -> None:
    monkeypatch.setattr(model, "find_spec", lambda name: object() if numpy else None)
    found = finding_of(model.vectors, machine)
    assert found.status is (Health.OK if numpy else Health.WARN)
    assert found.seen.startswith("Valkey 9.1.0 has no vector sets")


@pytest.mark.parametrize(
    ("installed", "unit"),
    [
        ((), "redis-server"),
        (("redis-server",), "redis-server"),
        (("valkey-server",), "valkey-server"),
        (("redis-server", "valkey-server"), "redis-server"),
    ],
)
def test_the_fix_names_the_installed_unit(
    tmp_path: Path, installed: tuple[str, ...], unit: str
) -> None:
    for name in installed:
        write(tmp_path, f"/lib/systemd/system/{name}.service")
    remedies = make_machine(tmp_path).remedies
    assert remedies.start_redis(LOCAL) == f"sudo systemctl start {unit}"
    assert remedies.redis_log(LOCAL) == f"sudo journalctl -u {unit} -n 50 --no-pager"

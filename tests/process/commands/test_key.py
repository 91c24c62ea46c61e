"""`sluice key` and real gateways: keys created before a gateway starts are valid in it."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import commands
from tests.support.processes.commands import SLUICE, CommandResult
from tests.support.processes.gateway import (
    PYTHON_M,
    UVICORN,
    GatewayProcess,
    StartGateway,
    environment,
    free_port,
)
from tests.support.processes.worker import wait_until
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
USAGE, UNAVAILABLE, NO_KEY, NOT_SHOWN, MISCONFIGURED = 64, 69, 66, 74, 78
SLOW = pytest.mark.slow("starts a gateway")
CHAT = {"task": "chat", "payload": {}}
Command = Callable[..., CommandResult]
Make = Callable[..., str]


@pytest.fixture
def server(module_server: RealServer) -> RealServer:
    module_server.client.flushall()
    return module_server


@pytest.fixture
def key(server: RealServer, command: Command) -> Command:

    def run(*words: str, **settings: str) -> CommandResult:
        return command("key", *words, **{"REDIS_URL": server.url, **settings})

    return run


@pytest.fixture
def make(key: Command) -> Make:

    def make(*words: str) -> str:
        made = key("create", "--name", "test", *words)
        assert made.code == 0, made.err
        [created] = made.out.split()
        assert created not in made.err
        return created

    return make


def ask(
    gateway: GatewayProcess, path: str, key: str = "", body: object = None, host: str = "127.0.0.1"
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    method, given = ("GET", {}) if body is None else ("POST", {"json": body})
    url = f"http://{host}:{gateway.port}{path}"
    answer = gateway.http.request(method, url, headers=headers, **given)
    return answer.status_code, answer.json()


# -- with gateways -----------------------------------------------------------------------------


@SLOW
def test_a_key_from_creation_to_revocation(
    server: RealServer, make: Make, key: Command, command: Command, start_gateway: StartGateway
) -> None:
    """The first one in a process. A gateway requires keys, also of clients on the same host."""
    made = commands.run("key", "create", "--name", "x", "--tenant", "shop", REDIS_URL=server.url)
    created = made.out.strip()
    gateway = start_gateway(server.url, AUTH="required")
    assert ask(gateway, "/healthz")[0] == 200
    status, problem = ask(gateway, "/v1/jobs", body=CHAT)
    assert (status, problem["code"]) == (401, "key_required")
    status, job = ask(gateway, "/v1/jobs", created, CHAT)
    assert status == 202
    other = make("--tenant", "other")  # while it is running
    assert ask(gateway, f"/v1/jobs/{job['job_id']}", created)[0] == 200
    assert ask(gateway, f"/v1/jobs/{job['job_id']}", other)[0] == 404
    revoked = key("revoke", created.split("_")[1])
    assert (revoked.code, revoked.out) == (0, "")
    wait_until(lambda: ask(gateway, "/v1/whoami", created)[0] == 401, 5)
    rotated = key("rotate", other.split("_")[1], "--grace", "0s").out.strip()
    wait_until(lambda: ask(gateway, "/v1/whoami", other)[0] == 401, 5)
    assert ask(gateway, "/v1/whoami", rotated)[1]["tenant"] == "other"
    # `sluice audit` needs an administrator's key.
    for given, code in {"": 4, rotated: 4, make("--scope", "admin"): 0}.items():
        ran = command("audit", "--url", gateway.url, SLUICE_API_KEY=given)
        assert ran.code == code, ran.err
        assert not given or given not in ran.out + ran.err
    gateway.stop()
    for secret in (created, other, rotated):
        assert secret.rpartition("_")[2] not in gateway.log


def non_loopback_address() -> str:
    """An address of this machine other than loopback; traffic to it stays on the machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address: str = probe.getsockname()[0]
    return address


@SLOW
@pytest.mark.parametrize("by_uvicorn", [True, False], ids=["uvicorn", "python -m"])
def test_keys_are_required_on_other_addresses(
    server: RealServer, make: Make, tmp_path: Path, by_uvicorn: bool
) -> None:
    """uvicorn does not know HOST; the address of the connection counts."""
    other, port = non_loopback_address(), free_port()
    process = (*UVICORN, "--host", "0.0.0.0", "--port", str(port)) if by_uvicorn else PYTHON_M
    settings = {"REDIS_URL": server.url} | ({} if by_uvicorn else {"HOST": "0.0.0.0"})
    gateway = GatewayProcess(process, tmp_path / "gateway.log", PORT=str(port), **settings)
    gateway.port = port

    def listens() -> bool:
        assert gateway.process.poll() is None, gateway.log
        try:
            return ask(gateway, "/healthz")[0] == 200
        except Exception:
            return False

    try:
        wait_until(listens)
        assert ask(gateway, "/v1/jobs", body=CHAT)[0] == (202 if by_uvicorn else 401)
        status, problem = ask(gateway, "/v1/jobs", body=CHAT, host=other)
        assert (status, problem["code"]) == (401, "key_required")
        assert ask(gateway, "/v1/jobs", make(), CHAT, host=other)[0] == 202
    finally:
        gateway.close()


@SLOW
def test_with_a_private_redis_before_the_start(
    tmp_path: Path, start_gateway: StartGateway, command: Command
) -> None:
    where = {"SLUICE_DATA_DIR": str(tmp_path / "data"), "REDIS_URL": ""}
    lost = command("key", "create", "--name", "x", **where)
    assert lost.code == UNAVAILABLE
    assert "REDIS_URL" in lost.err
    assert not (tmp_path / "data").exists()
    gateway = start_gateway("", SLUICE_DATA_DIR=where["SLUICE_DATA_DIR"])
    running = command("key", "create", "--name", "while it runs", **where)
    assert running.code == 0, running.err
    gateway.stop()
    stopped = command("key", "create", "--name", "while it does not", **where)
    assert stopped.code == 0, stopped.err
    again = start_gateway("", SLUICE_DATA_DIR=where["SLUICE_DATA_DIR"], AUTH="required")
    for made in (running, stopped):
        assert ask(again, "/v1/whoami", made.out.strip())[0] == 200
    again.stop()


@SLOW
def test_gateways_with_partitions_find_the_key(
    start_gateway: StartGateway, server: RealServer, key: Command
) -> None:
    """The number of partitions is given, or found in the data of a gateway."""
    explicit = key("create", "--name", "x", QUEUE_PARTITIONS="4")
    gateway = start_gateway(server.url, AUTH="required", QUEUE_PARTITIONS="4")
    detected = key("create", "--name", "y")
    for made in (explicit, detected):
        assert ask(gateway, "/v1/whoami", made.out.strip())[0] == 200
    keys: Any = server.client.keys("*access:*")
    assert set(keys) >= {b"{0}:access:keys", b"{0}:access:trail"}
    assert not [key for key in keys if key.startswith(b"access:")]


# -- the command alone -------------------------------------------------------------------------


def test_every_option(key: Command) -> None:
    made = key(
        *("create", "--name", "shop front", "--tenant", "shop", "--scope", "jobs:write"),
        *("--scope", "metrics", "--expires", "90d", "--rate", "60/min", "--burst", "10"),
        *("--max-jobs", "20", "--task", "chat", "--task", "rag", "--tool", "now", "-o", "json"),
    )
    assert made.code == 0, made.err
    view = json.loads(made.out)
    created = view.pop("key")
    assert view.pop("expires_ts") - view.pop("created_ts") == 90 * 86_400_000
    assert view == {
        "key_id": created.split("_")[1],
        "name": "shop front",
        "tenant": "shop",
        "scopes": ["jobs:write", "metrics"],
        "tasks": ["chat", "rag"],
        "tools": ["now"],
        "rate_per_min": 60.0,
        "burst": 10,
        "max_jobs": 20,
    }
    listed = key("ls")
    head, row = listed.out.splitlines()
    assert head.split()[:4] == ["ID", "NAME", "TENANT", "SCOPES"]
    for word in (view["key_id"], "shop front", "jobs:write,metrics", "60/min burst 10", "20 jobs"):
        assert word in row
    as_json = json.loads(key("ls", "-o", "json").out)
    assert as_json[0]["key_id"] == view["key_id"]
    assert created.rpartition("_")[2] not in listed.out + json.dumps(as_json)


def test_the_command_writes_the_audit_log(server: RealServer, make: Make, key: Command) -> None:
    created = make()
    key_id = created.split("_")[1]
    key("rotate", key_id)
    key("revoke", key_id)
    client: Any = server.client
    entries = [fields for _, fields in client.xrange("access:trail")]
    actions = [entry[b"action"] for entry in entries]
    assert actions == [b"key.create", b"key.rotate", b"key.revoke"]
    user = pwd.getpwuid(os.getuid()).pw_name
    assert {entry[b"who"].decode() for entry in entries} == {f"local:{user}"}
    assert created.encode() not in str(entries).encode()


def test_no_change_without_an_audit_log_entry(server: RealServer, key: Command) -> None:
    server.client.set("access:trail", "x")
    refused = key("create", "--name", "x")
    assert refused.code != 0
    assert refused.out == ""
    assert server.client.keys("*") == [b"access:trail"]


@pytest.mark.parametrize(
    ("words", "named", "code"),
    [
        ("create", "--name", USAGE),
        ("create --name x --tenant 'A B'", "tenant", USAGE),
        ("create --name x --scope root", "root", USAGE),
        ("create --name x --task dance", "dance", USAGE),
        ("create --name x --rate many", "60/min", USAGE),
        ("create --name x --rate 0/min", "rate", USAGE),
        ("create --name x --burst 3", "rate", USAGE),
        ("create --name x --max-jobs 0", "jobs", USAGE),
        ("create --name x --expires soon", "90d", USAGE),
        ("create --name ''", "name", USAGE),
        ("rotate x", "ls", USAGE),
        ("rotate aaaaaaaa --grace 99d", "30d", USAGE),
        ("revoke ../../x", "ls", USAGE),
        ("", "action", USAGE),
        ("rotate aaaaaaaa", "aaaaaaaa", NO_KEY),
        ("revoke aaaaaaaa", "aaaaaaaa", NO_KEY),
        ("--redis '' create --name x", "--redis", MISCONFIGURED),
    ],
)
def test_mistakes_are_named(
    server: RealServer, key: Command, words: str, named: str, code: int
) -> None:
    failed = key(*shlex.split(words))
    assert failed.code in ((2, USAGE) if code == USAGE else (code,))
    assert named in failed.err
    assert failed.out == ""
    assert server.client.dbsize() == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://x",
        "redis://localhost:99999",
        "redis://[::1",
        "redis://:hunter#2@localhost",
        "unix:///x?db=one&password=hunter2",
    ],
)
@pytest.mark.parametrize("by_option", [True, False])
def test_an_invalid_url(key: Command, url: str, by_option: bool) -> None:
    failed = key("--redis", url, "ls") if by_option else key("ls", REDIS_URL=url)
    assert failed.code == MISCONFIGURED
    [line] = failed.err.splitlines()
    assert ("--redis" if by_option else "REDIS_URL") in line
    assert "hunter" not in line


def test_an_unreachable_redis(key: Command, tmp_path: Path) -> None:
    failed = key("ls", REDIS_URL=f"unix://{tmp_path}/none")
    assert failed.code == UNAVAILABLE
    assert len(failed.err.splitlines()) == 1


# -- output that cannot be written ---------------------------------------------------------------


def shell(server: RealServer, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shlex.join((*SLUICE, 'key'))} {line}"],
        env=environment(REDIS_URL=server.url),
        capture_output=True,
        text=True,
        timeout=60,
    )


AGAIN = pytest.mark.slow("repeats the command")


@pytest.mark.parametrize(
    ("nowhere", "output"),
    [
        (">/dev/full", "text"),
        pytest.param(">/dev/full", "json", marks=AGAIN),
        pytest.param(">&-", "text", marks=AGAIN),
        pytest.param(">&-", "json", marks=AGAIN),
        pytest.param("| (exec 0<&-)", "text", marks=AGAIN),
        pytest.param("| (exec 0<&-)", "json", marks=AGAIN),
    ],
)
def test_a_key_that_could_not_be_printed(server: RealServer, nowhere: str, output: str) -> None:
    failed = shell(server, f"create --name x -o {output} {nowhere}")
    assert failed.returncode == NOT_SHOWN, failed.stderr
    assert "Traceback" not in failed.stderr
    [made] = server.client.hkeys("access:keys")
    assert f"sluice key revoke {made.decode()}" in failed.stderr


@pytest.mark.slow("starts another command")
def test_a_key_is_printed_without_stderr(server: RealServer) -> None:
    made = shell(server, "create --name x 2>&-")
    assert made.returncode == 0
    [key] = made.stdout.split()
    assert key.startswith("sluice_")

"""`sluice key` and real gateways: keys created before a gateway starts are valid in it."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.processes import PYTHON_M, TIMEOUT_S, UVICORN, GatewayProcess, environment
from tests.gateway.processes import free_port as any_port
from tests.support.backends import BUNDLED, RealServer, require_binary
from tests.worker.processes import wait_until

pytestmark = pytest.mark.process

COMMAND = (sys.executable, "-m", "sluice", "key")
USAGE, UNAVAILABLE, NO_KEY, NOT_SHOWN, MISCONFIGURED = 64, 69, 66, 74, 78


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _empty(redis_server: RealServer) -> None:
    redis_server.client.flushall()


@pytest.fixture
def start(tmp_path: Path, redis_server: RealServer) -> Iterator[Callable[..., GatewayProcess]]:
    started: list[GatewayProcess] = []

    def starting(command: tuple[str, ...] = PYTHON_M, **settings: str) -> GatewayProcess:
        chosen = {"PORT": "0", "REDIS_URL": redis_server.url, **settings}
        log = tmp_path / f"gateway-{len(started)}.log"
        started.append(GatewayProcess(command, log, **chosen))
        return started[-1]

    yield starting
    for gateway in started:
        gateway.close()


def run(*args: str, cwd: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run(
        (*COMMAND, *args),
        env=environment(**settings),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in finished.stderr, finished.stderr
    return finished


def make(server: RealServer, *args: str) -> str:
    made = run("create", "--name", "test", *args, REDIS_URL=server.url)
    assert made.returncode == 0, made.stderr
    [key] = made.stdout.split()
    assert key not in made.stderr
    return key


def ask(
    port: int, path: str, key: str | None = None, body: object = None, host: str = "127.0.0.1"
) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://{host}:{port}{path}")
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    if body is not None:
        request.add_header("Content-Type", "application/json")
        request.data = json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


CHAT = {"task": "chat", "payload": {}}


def test_a_key_from_creation_to_revocation(
    redis_server: RealServer, start: Callable[..., GatewayProcess]
) -> None:
    key = make(redis_server, "--tenant", "shop")
    port = any_port()
    gateway = start(HOST="0.0.0.0", PORT=str(port))
    wait_until(lambda: _listens(gateway, port))
    assert ask(port, "/healthz")[0] == 200
    status, problem = ask(port, "/v1/jobs", body=CHAT)
    assert (status, problem["code"]) == (401, "key_required")
    status, made = ask(port, "/v1/jobs", key, CHAT)
    assert status == 202
    other = make(redis_server, "--tenant", "other")  # while it is running
    assert ask(port, f"/v1/jobs/{made['job_id']}", key)[0] == 200
    assert ask(port, f"/v1/jobs/{made['job_id']}", other)[0] == 404
    revoked = run("revoke", key.split("_")[1], REDIS_URL=redis_server.url)
    assert (revoked.returncode, revoked.stdout) == (0, "")
    wait_until(lambda: ask(port, "/v1/whoami", key)[0] == 401, 5)
    assert ask(port, "/v1/whoami", other)[1]["tenant"] == "other"
    gateway.stop()
    for secret in (key, other):
        assert secret.rpartition("_")[2] not in gateway.log


def _listens(gateway: GatewayProcess, port: int) -> bool:
    assert gateway.process.poll() is None, gateway.log
    try:
        return ask(port, "/healthz")[0] == 200
    except OSError:
        return False


def test_uvicorn_requires_keys_on_other_addresses(
    redis_server: RealServer, start: Callable[..., GatewayProcess]
) -> None:
    """uvicorn does not know HOST; the address of the connection counts."""
    beyond = _non_loopback_address()
    port = any_port()
    gateway = start((*UVICORN, "--host", "0.0.0.0", "--port", str(port)))
    wait_until(lambda: _listens(gateway, port))
    assert ask(port, "/v1/jobs", body=CHAT)[0] == 202
    status, problem = ask(port, "/v1/jobs", body=CHAT, host=beyond)
    assert (status, problem["code"]) == (401, "key_required")
    assert ask(port, "/v1/jobs", make(redis_server), CHAT, host=beyond)[0] == 202


def _non_loopback_address() -> str:
    """An address of this machine other than loopback; traffic to it stays on the machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address: str = probe.getsockname()[0]
    return address


@pytest.mark.parametrize("command", [PYTHON_M, UVICORN], ids=["python -m", "uvicorn"])
def test_auth_off_is_refused_on_other_addresses(tmp_path: Path, command: tuple[str, ...]) -> None:
    finished = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(AUTH="off", HOST="0.0.0.0", PORT="0", REDIS_URL=f"unix://{tmp_path}/none"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    last = finished.stdout.splitlines()[-1]
    assert "AUTH=off" in last
    assert "HOST=0.0.0.0" in last
    if command == PYTHON_M:
        assert finished.returncode == MISCONFIGURED
        assert "Traceback" not in finished.stdout
        assert last.startswith("sluice: ")
    else:
        assert finished.returncode != 0


def test_an_audit_with_a_key(
    redis_server: RealServer, start: Callable[..., GatewayProcess]
) -> None:
    gateway = start(AUTH="required").wait_until_listening()
    url = f"http://127.0.0.1:{gateway.port}"
    keys = {"": 4, make(redis_server): 4, make(redis_server, "--scope", "admin"): 0}
    for key, code in keys.items():
        finished = subprocess.run(
            (sys.executable, "-m", "sluice", "audit", "--url", url),
            env=environment(SLUICE_API_KEY=key),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert finished.returncode == code, finished.stderr
        if key:
            assert key not in finished.stdout + finished.stderr


def test_every_option(redis_server: RealServer) -> None:
    made = run(
        *("create", "--name", "shop front", "--tenant", "shop", "--scope", "jobs:write"),
        *("--scope", "metrics", "--expires", "90d", "--rate", "60/min", "--burst", "10"),
        *("--max-jobs", "20", "--task", "chat", "--task", "rag", "--tool", "now", "-o", "json"),
        REDIS_URL=redis_server.url,
    )
    assert made.returncode == 0, made.stderr
    view = json.loads(made.stdout)
    key = view.pop("key")
    assert view.pop("expires_ts") - view.pop("created_ts") == 90 * 86_400_000
    assert view == {
        "key_id": key.split("_")[1],
        "name": "shop front",
        "tenant": "shop",
        "scopes": ["jobs:write", "metrics"],
        "tasks": ["chat", "rag"],
        "tools": ["now"],
        "rate_per_min": 60.0,
        "burst": 10,
        "max_jobs": 20,
    }
    listed = run("ls", REDIS_URL=redis_server.url)
    head, row = listed.stdout.splitlines()
    assert head.split()[:4] == ["ID", "NAME", "TENANT", "SCOPES"]
    for word in (view["key_id"], "shop front", "jobs:write,metrics", "60/min burst 10", "20 jobs"):
        assert word in row
    as_json = json.loads(run("ls", "-o", "json", REDIS_URL=redis_server.url).stdout)
    assert as_json[0]["key_id"] == view["key_id"]
    assert key.rpartition("_")[2] not in listed.stdout + json.dumps(as_json)


def test_rotation(redis_server: RealServer, start: Callable[..., GatewayProcess]) -> None:
    old = make(redis_server)
    gateway = start(AUTH="required").wait_until_listening()
    rotated = run("rotate", old.split("_")[1], "--grace", "1h", REDIS_URL=redis_server.url)
    [new] = rotated.stdout.split()
    wait_until(lambda: ask(gateway.port, "/v1/whoami", new)[0] == 200, 5)
    assert ask(gateway.port, "/v1/whoami", old)[0] == 200
    at_once = run("rotate", old.split("_")[1], "--grace", "0s", REDIS_URL=redis_server.url)
    [newest] = at_once.stdout.split()
    wait_until(lambda: ask(gateway.port, "/v1/whoami", new)[0] == 401, 5)
    assert ask(gateway.port, "/v1/whoami", old)[0] == 401
    assert ask(gateway.port, "/v1/whoami", newest)[0] == 200


def test_the_command_writes_the_audit_log(redis_server: RealServer) -> None:
    key = make(redis_server)
    key_id = key.split("_")[1]
    run("rotate", key_id, REDIS_URL=redis_server.url)
    run("revoke", key_id, REDIS_URL=redis_server.url)
    client: Any = redis_server.client
    entries = [fields for _, fields in client.xrange("access:trail")]
    actions = [entry[b"action"] for entry in entries]
    assert actions == [b"key.create", b"key.rotate", b"key.revoke"]
    user = pwd.getpwuid(os.getuid()).pw_name
    assert {entry[b"who"].decode() for entry in entries} == {f"local:{user}"}
    assert key.encode() not in str(entries).encode()


def test_no_change_without_an_audit_log_entry(redis_server: RealServer) -> None:
    client: Any = redis_server.client
    client.set("access:trail", "x")
    refused = run("create", "--name", "x", REDIS_URL=redis_server.url)
    assert refused.returncode != 0
    assert refused.stdout == ""
    assert client.keys("*") == [b"access:trail"]


def test_with_a_private_redis_before_the_start(
    tmp_path: Path, start: Callable[..., GatewayProcess]
) -> None:
    where = {"SLUICE_DATA_DIR": str(tmp_path / "data"), "REDIS_URL": ""}
    lost = run("create", "--name", "x", cwd=tmp_path, **where)
    assert lost.returncode == UNAVAILABLE
    assert "REDIS_URL" in lost.stderr
    assert not (tmp_path / "data").exists()
    gateway = start(**where).wait_until_listening()
    running = run("create", "--name", "while it runs", **where)
    assert running.returncode == 0, running.stderr
    gateway.stop()
    stopped = run("create", "--name", "while it does not", **where)
    assert stopped.returncode == 0, stopped.stderr
    again = start(**where, AUTH="required").wait_until_listening()
    for made in (running, stopped):
        assert ask(again.port, "/v1/whoami", made.stdout.strip())[0] == 200
    again.stop()


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("create",), "--name"),
        (("create", "--name", "x", "--tenant", "A B"), "tenant"),
        (("create", "--name", "x", "--scope", "root"), "root"),
        (("create", "--name", "x", "--task", "dance"), "dance"),
        (("create", "--name", "x", "--rate", "many"), "60/min"),
        (("create", "--name", "x", "--rate", "0/min"), "rate"),
        (("create", "--name", "x", "--burst", "3"), "rate"),
        (("create", "--name", "x", "--max-jobs", "0"), "jobs"),
        (("create", "--name", "x", "--expires", "soon"), "90d"),
        (("create", "--name", ""), "name"),
        (("rotate", "x"), "ls"),
        (("rotate", "aaaaaaaa", "--grace", "99d"), "30d"),
        (("revoke", "../../x"), "ls"),
        ((), "action"),
    ],
)
def test_mistakes_are_named(redis_server: RealServer, args: tuple[str, ...], word: str) -> None:
    failed = run(*args, REDIS_URL=redis_server.url)
    assert failed.returncode in (2, USAGE)
    assert word in failed.stderr
    assert failed.stdout == ""
    assert redis_server.client.dbsize() == 0


@pytest.mark.parametrize("action", ["rotate", "revoke"])
def test_an_unknown_key(redis_server: RealServer, action: str) -> None:
    failed = run(action, "aaaaaaaa", REDIS_URL=redis_server.url)
    assert (failed.returncode, failed.stdout) == (NO_KEY, "")
    assert "aaaaaaaa" in failed.stderr
    assert redis_server.client.dbsize() == 0


def test_an_unreachable_redis(tmp_path: Path) -> None:
    failed = run("ls", REDIS_URL=f"unix://{tmp_path}/none")
    assert failed.returncode == UNAVAILABLE
    assert len(failed.stderr.splitlines()) == 1
    nonsense = run("ls", REDIS_URL="http://x")
    assert nonsense.returncode == MISCONFIGURED


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:99999",
        "redis://[::1",
        "redis://:hunter#2@localhost",
        "unix:///x?db=one&password=hunter2",
    ],
)
@pytest.mark.parametrize("by_option", [True, False])
def test_an_invalid_url(url: str, by_option: bool) -> None:
    failed = run("--redis", url, "ls") if by_option else run("ls", REDIS_URL=url)
    assert failed.returncode == MISCONFIGURED
    [line] = failed.stderr.splitlines()
    assert ("--redis" if by_option else "REDIS_URL") in line
    assert "hunter" not in line


def test_an_empty_option_is_a_mistake(redis_server: RealServer) -> None:
    failed = run("--redis", "", "create", "--name", "x", REDIS_URL=redis_server.url)
    assert failed.returncode == MISCONFIGURED
    assert redis_server.client.dbsize() == 0


@pytest.mark.parametrize("nowhere", [">/dev/full", ">&-", "| (exec 0<&-)"])
@pytest.mark.parametrize("output", ["text", "json"])
def test_a_key_that_could_not_be_printed(
    redis_server: RealServer, nowhere: str, output: str
) -> None:
    command = f"set -o pipefail; {shlex.join(COMMAND)} create --name x -o {output} {nowhere}"
    failed = subprocess.run(
        ["bash", "-c", command],
        env=environment(REDIS_URL=redis_server.url),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert failed.returncode == NOT_SHOWN, failed.stderr
    assert "Traceback" not in failed.stderr
    [made] = redis_server.client.hkeys("access:keys")
    assert f"sluice key revoke {made.decode()}" in failed.stderr


def test_a_closed_pipe_ends_the_command(redis_server: RealServer) -> None:
    for _ in range(2):
        make(redis_server)
    command = f"set -o pipefail; {shlex.join(COMMAND)} ls -o json | (exec 0<&-)"
    left = subprocess.run(
        ["bash", "-c", command],
        env=environment(REDIS_URL=redis_server.url),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert left.stderr == ""


def test_only_the_key_is_printed_to_stdout(redis_server: RealServer) -> None:
    command = f"{shlex.join(COMMAND)} create --name x 2>&-"
    made = subprocess.run(
        ["bash", "-c", command],
        env=environment(REDIS_URL=redis_server.url),
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert made.returncode == 0
    [key] = made.stdout.split()
    assert key.startswith("sluice_")


def test_the_version_needs_no_heavy_imports() -> None:
    code = (
        "import sys; sys.argv = ['sluice', '--version']\n"
        "from sluice.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('ops', 'common', 'redis')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_gateways_with_partitions_find_the_key(
    start: Callable[..., GatewayProcess], redis_server: RealServer
) -> None:
    """The number of partitions is given, or found in the data of a gateway."""
    explicit = run("create", "--name", "x", REDIS_URL=redis_server.url, QUEUE_PARTITIONS="4")
    gateway = start(AUTH="required", QUEUE_PARTITIONS="4").wait_until_listening()
    detected = run("create", "--name", "y", REDIS_URL=redis_server.url)
    for made in (explicit, detected):
        request = urllib.request.Request(
            f"http://127.0.0.1:{gateway.port}/v1/whoami",
            headers={"Authorization": f"Bearer {made.stdout.strip()}"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            assert answer.status == 200
    keys: Any = redis_server.client.keys("*access:*")
    assert set(keys) >= {b"{0}:access:keys", b"{0}:access:trail"}
    assert not [key for key in keys if key.startswith(b"access:")]

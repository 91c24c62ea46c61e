"""Starts Redis, gateways, workers and the proxies between them; restarts processes that exit."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chaos import http
from chaos.http import Unanswered
from chaos.many import ManyServers
from chaos.plan import EVERYONE, GATEWAYS, LEASE_MS, WORKERS
from chaos.proxy import Proxy
from chaos.run_log import DIRECTORY_VARIABLE
from chaos.server import ChaosRedis
from sluice.common.contracts.jobs import Task
from tests.support import ports

_ROOT = Path(__file__).resolve().parents[1]
MAX_INFLIGHT = 4
#: Maximum running jobs per worker, by task.
TASK_LIMITS = {Task.TOOL.value: 2}
TASK_LIMITS_GLOBAL = {Task.RAG.value: 3}
READY_TIMEOUT_S = 60.0
#: Time limit for a graceful stop; the grace periods add up to less than a third of it.
STOP_TIMEOUT_S = 40.0
_RESTART_AFTER_S = 0.2
_POLL_EVERY_S = 0.05
#: Part of the log line that a worker writes after its start.
_STARTED = b"takes jobs from"

_COMMON = {"LOG_LEVEL": "info"}
_GATEWAY = {"SSE_HEARTBEAT_S": "2", "BACKPRESSURE_MAX_BACKLOG": "120"}
_WORKER = {
    "LEASE_MS": str(LEASE_MS),
    "BLOCK_MS": "200",
    "MAX_INFLIGHT": str(MAX_INFLIGHT),
    "COUNT": "8",
    # Jobs may be interrupted often; only a limit in the job itself may end it.
    "MAX_ATTEMPTS": "1000",
    "RETRY_BACKOFF_S": "0.1",
    "RETRY_BACKOFF_MAX_S": "1",
    "CANCEL_GRACE_S": "0.3",
    "SHUTDOWN_GRACE_S": "0.7",
    "AUDIT_EVERY_S": "0",
    "TASK_LIMITS": ",".join(f"{task}:{most}" for task, most in TASK_LIMITS.items()),
    "TASK_LIMITS_GLOBAL": ",".join(f"{task}:{most}" for task, most in TASK_LIMITS_GLOBAL.items()),
    "WORKER_HANDLERS": "chaos.handlers",
}


@dataclass(frozen=True)
class Kill:
    """A killed process."""

    process: str
    at_ms: int
    #: True if no other fault was active.
    calm: bool = False


class Member:
    """A gateway or worker: a named process that is restarted when it exits."""

    def __init__(self, name: str, module: str, log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._module = module
        self._log = log
        self._environment = environment
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._stop_requested_at: float | None = None
        self._was_killed = False
        self._log_start = 0

    @property
    def alive(self) -> bool:
        """True if the process exists, even if it is frozen."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self._stop_requested_at, self._was_killed = None, False
        self.starts += 1
        with self._log.open("ab") as output:
            self._log_start = output.tell()
            # In its own session, so that Ctrl-C reaches only the harness, which then stops the
            # process.
            self.process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                cwd=_ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self, *, calm: bool = False) -> Kill:
        assert self.process is not None
        self._was_killed = True
        kill = Kill(f"{self.name}.{self.process.pid}", int(time.time() * 1000), calm)
        self.process.kill()
        return kill

    def ask_to_stop(self) -> None:
        assert self.process is not None
        self._stop_requested_at = self._stop_requested_at or time.monotonic()
        self.process.terminate()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def complaint(self) -> str:
        """Describes an unexpected exit or a stop that takes too long; empty if there is none."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            requested_at = self._stop_requested_at
            late = requested_at is not None and time.monotonic() - requested_at > STOP_TIMEOUT_S
            return f"{self.name} did not stop within {STOP_TIMEOUT_S:.0f} s" if late else ""
        if self._was_killed or (self._stop_requested_at is not None and self._exited_cleanly(code)):
            return ""
        reason = "was asked to stop and" if self._stop_requested_at is not None else "by itself"
        return f"{self.name} {reason} ended with code {code}"

    def _exited_cleanly(self, code: int) -> bool:
        """SIGTERM during the start of Python ends the process with the signal; that is accepted."""
        return code == 0 or (code == -signal.SIGTERM and not self._had_started())

    def _had_started(self) -> bool:
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return _STARTED in log.read()

    def end(self) -> None:
        """Kills the process at the end of the run."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Cluster:
    """All processes of a run, and the faults that can be applied to them."""

    def __init__(self, directory: Path, many: ManyServers | None = None) -> None:
        self.directory = directory
        self.one = ChaosRedis(directory) if many is None else None
        self.many = many
        self.run_logs = directory / "run_logs"
        self.run_logs.mkdir()
        self.proxies: dict[str, Proxy] = {}
        if self.one is not None:
            self.proxies = {name: Proxy(self.one.port) for name in (*GATEWAYS, *WORKERS)}
        self.members: dict[str, Member] = {}
        self.gateway_ports = [ports.pick() for _ in GATEWAYS]
        #: Unexpected behaviour of processes.
        self.complaints: list[str] = []
        self.kills: list[Kill] = []
        self._supervising: asyncio.Task[None] | None = None

    @property
    def redis(self) -> ChaosRedis | ManyServers:
        redis = self.one or self.many
        assert redis is not None
        return redis

    async def start(self) -> None:
        """Starts everything and waits until the gateways are ready."""
        await self.redis.start()
        for name in (*GATEWAYS, *WORKERS):
            environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(_ROOT)}
            environment["REDIS_URL"] = await self._url_for(name)
            self.members[name] = self._member(name, {**environment, **_COMMON})
        for member in self.members.values():
            member.start()
        self._supervising = asyncio.create_task(self._supervise())
        await self.wait_until_ready()

    async def _url_for(self, name: str) -> str:
        if self.many is not None:
            return self.many.url
        await self.proxies[name].start()
        return f"redis://127.0.0.1:{self.proxies[name].port}/0"

    def _member(self, name: str, environment: dict[str, str]) -> Member:
        log = self.directory / f"{name}.log"
        environment |= self.redis.settings
        if name in GATEWAYS:
            port = str(self.gateway_ports[GATEWAYS.index(name)])
            return Member(name, "sluice.gateway", log, {**environment, **_GATEWAY, "PORT": port})
        own = {"CONSUMER": name, DIRECTORY_VARIABLE: str(self.run_logs)}
        return Member(name, "sluice.worker", log, {**environment, **_WORKER, **own})

    def proxies_of(self, target: str) -> Iterator[Proxy]:
        """Proxies between Redis and a member, or all of them."""
        for name, proxy in self.proxies.items():
            if target in (name, EVERYONE):
                yield proxy

    def kill(self, name: str, *, calm: bool = False) -> None:
        self.kills.append(self.members[name].kill(calm=calm))

    async def wait_until_ready(self) -> None:
        """Waits until every gateway is ready."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        for port in self.gateway_ports:
            while not await _is_ready(port):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no gateway on port {port}; see {self.directory}")
                await asyncio.sleep(0.1)

    def heal(self) -> None:
        """Ends all faults; processes that exited are being restarted."""
        for proxy in self.proxies.values():
            proxy.heal()
        self.redis.thaw()
        for member in self.members.values():
            if member.alive:
                member.signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Stops gateways and workers gracefully. Redis keeps running for the checks."""
        await self._stop_supervising()
        for member in self.members.values():
            if member.alive:
                member.ask_to_stop()
        for member in self.members.values():
            while member.alive and not member.complaint():
                await asyncio.sleep(_POLL_EVERY_S)
            self._complain(member)

    async def end(self) -> None:
        """Kills everything that still runs."""
        for member in self.members.values():
            member.end()
        await self.redis.aclose()
        self.redis.end()
        await self._stop_supervising()
        for proxy in self.proxies.values():
            await proxy.close()

    async def _supervise(self) -> None:
        """Restarts processes that exited, as systemd would."""
        while True:
            await asyncio.sleep(_POLL_EVERY_S)
            for member in self.members.values():
                if self._complain(member) and member.alive:
                    member.kill()
                if member.process is not None and not member.alive:
                    asyncio.get_running_loop().call_later(_RESTART_AFTER_S, self._restart, member)
                    member.process = None

    def _restart(self, member: Member) -> None:
        if self._supervising is not None and member.process is None:
            member.start()

    def _complain(self, member: Member) -> bool:
        complaint = member.complaint() if member.process is not None else ""
        if complaint:
            self.complaints.append(complaint)
        return bool(complaint)

    async def _stop_supervising(self) -> None:
        supervising, self._supervising = self._supervising, None
        if supervising is not None:
            supervising.cancel()
            await asyncio.gather(supervising, return_exceptions=True)


async def _is_ready(port: int) -> bool:
    try:
        return (await http.request(port, "GET", "/readyz")).status == 200
    except Unanswered:
        return False

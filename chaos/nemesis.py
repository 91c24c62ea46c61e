"""Injects the faults of the plan and records when each one was active."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from chaos.cluster import Cluster
from chaos.plan import MASTER_FAULTS, Fault, FaultKind
from sluice.common.contracts.jobs import WORKER_GROUP
from sluice.common.redis.connection import TRANSIENT_ERRORS

#: How long a command is retried while Redis is unavailable.
_RETRY_FOR_S = 3.0
_RETRY_EVERY_S = 0.1


@dataclass
class InjectedFault:
    """A fault as it was injected."""

    fault: Fault
    began_ms: int
    #: Why the fault had no effect; empty if it had one.
    skipped: str = ""
    ended_ms: int = 0


@dataclass
class Nemesis:
    """Injects the faults of the plan into the cluster."""

    cluster: Cluster
    plan: Sequence[Fault]
    injected_faults: list[InjectedFault] = field(default_factory=list)
    _restarting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def by_kind(self) -> Counter[FaultKind]:
        """Number of effective faults by kind."""
        return Counter(
            injected.fault.kind for injected in self.injected_faults if not injected.skipped
        )

    async def run(self) -> None:
        """Runs the whole plan; faults may overlap."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        running: list[asyncio.Task[None]] = []
        try:
            for fault in self.plan:
                await asyncio.sleep(max(0.0, started + fault.at_s - loop.time()))
                running.append(asyncio.create_task(self._inject(fault)))
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()

    async def _inject(self, fault: Fault) -> None:
        injected = InjectedFault(fault, _now_ms())
        self.injected_faults.append(injected)
        kind = fault.kind
        if kind in (FaultKind.KILL_REDIS, FaultKind.RESTART_REDIS, FaultKind.FREEZE_REDIS):
            injected.skipped = await self._inject_redis(fault)
        elif kind in MASTER_FAULTS:
            injected.skipped = await self._inject_master(fault)
        elif kind in (FaultKind.FLUSH_SCRIPTS, FaultKind.DESTROY_GROUP):
            injected.skipped = await self._command(fault)
        elif fault.target in self.cluster.members and kind in _PROCESS_FAULTS:
            injected.skipped = await self._inject_process(fault)
        else:
            await self._inject_network(fault)
        injected.ended_ms = _now_ms()

    async def _inject_process(self, fault: Fault) -> str:
        member = self.cluster.members[fault.target]
        if not member.alive:
            return "not running"
        if fault.kind in (FaultKind.KILL_WORKER, FaultKind.KILL_GATEWAY):
            self.cluster.kill(fault.target, calm=fault.calm)
        elif fault.kind in (FaultKind.DRAIN_WORKER, FaultKind.DRAIN_GATEWAY):
            member.ask_to_stop()
        else:
            frozen = member.process
            assert frozen is not None
            frozen.send_signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            frozen.send_signal(signal.SIGCONT)  # no effect if the process was killed meanwhile
        return ""

    async def _inject_redis(self, fault: Fault) -> str:
        redis = self.cluster.one
        if redis is None or redis.process is None or redis.process.poll() is not None:
            return "not running"
        if fault.kind is FaultKind.FREEZE_REDIS:
            redis.freeze()
            await asyncio.sleep(fault.seconds)
            redis.thaw()
            return ""
        if self._restarting.locked():
            return "already restarting"
        async with self._restarting:
            if fault.kind is FaultKind.KILL_REDIS:
                await redis.kill()
            else:
                await redis.stop()
            await asyncio.sleep(fault.seconds)
            await redis.start()
        return ""

    async def _inject_master(self, fault: Fault) -> str:
        many = self.cluster.many
        if many is None:
            return "there is only one server"
        if self._restarting.locked():
            return "still recovering from the previous fault"
        async with self._restarting:
            return await many.inject(fault)

    async def _command(self, fault: Fault) -> str:
        clients = self.cluster.redis.clients
        deadline = time.monotonic() + _RETRY_FOR_S
        while True:
            try:
                if fault.kind is FaultKind.FLUSH_SCRIPTS:
                    for partition in clients:
                        await partition.client.script_flush()
                else:
                    for partition in clients:
                        await partition.client.xgroup_destroy(partition.keys.queue, WORKER_GROUP)
                return ""
            except (RedisError, *TRANSIENT_ERRORS) as error:
                if time.monotonic() > deadline:
                    return str(error)
            await asyncio.sleep(_RETRY_EVERY_S)

    async def _inject_network(self, fault: Fault) -> None:
        proxies = list(self.cluster.proxies_of(fault.target))
        for proxy in proxies:
            if fault.kind is FaultKind.CUT:
                proxy.cut()
            elif fault.kind is FaultKind.LOSE_REPLIES:
                proxy.lose(fault.amount)
            elif fault.kind is FaultKind.DELAY:
                proxy.delay(fault.amount / 1000)
            else:
                proxy.drop(requests_pass=fault.kind is FaultKind.DEAF)
        await asyncio.sleep(fault.seconds)
        for proxy in proxies:
            if fault.kind is FaultKind.DELAY:
                proxy.delay(0.0)
            elif fault.kind in (FaultKind.SILENCE, FaultKind.DEAF):
                proxy.stop_dropping()


_PROCESS_FAULTS = (
    FaultKind.KILL_WORKER,
    FaultKind.KILL_GATEWAY,
    FaultKind.FREEZE_WORKER,
    FaultKind.FREEZE_GATEWAY,
    FaultKind.DRAIN_WORKER,
    FaultKind.DRAIN_GATEWAY,
)


def _now_ms() -> int:
    return int(time.time() * 1000)

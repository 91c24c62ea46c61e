"""Carries the plan out, and notes what it really did and when."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from chaos.cluster import Cluster
from chaos.plan import OF_MASTERS, Fault, FaultKind
from common.contracts.jobs import WORKER_GROUP
from common.redis.connection import TRANSIENT_ERRORS

#: How long a command to Redis is tried while it is away.
_PATIENCE_S = 3.0
_AGAIN_S = 0.1


@dataclass
class Deed:
    """A fault as it came about."""

    fault: Fault
    began_ms: int
    #: Why nothing came of it; empty if something did.
    missed: str = ""
    ended_ms: int = 0


@dataclass
class Nemesis:
    """Does to the cluster what the plan says."""

    cluster: Cluster
    plan: Sequence[Fault]
    deeds: list[Deed] = field(default_factory=list)
    _restarting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def by_kind(self) -> Counter[FaultKind]:
        """How often each kind of fault happened."""
        return Counter(deed.fault.kind for deed in self.deeds if not deed.missed)

    async def run(self) -> None:
        """Carry out the whole plan; faults that last may overlap."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        under_way: list[asyncio.Task[None]] = []
        try:
            for fault in self.plan:
                await asyncio.sleep(max(0.0, started + fault.at_s - loop.time()))
                under_way.append(asyncio.create_task(self._do(fault)))
            await asyncio.gather(*under_way)
        finally:
            for task in under_way:
                task.cancel()

    async def _do(self, fault: Fault) -> None:
        deed = Deed(fault, _now_ms())
        self.deeds.append(deed)
        kind = fault.kind
        if kind in (FaultKind.KILL_REDIS, FaultKind.RESTART_REDIS, FaultKind.FREEZE_REDIS):
            deed.missed = await self._strike_redis(fault)
        elif kind in OF_MASTERS:
            deed.missed = await self._strike_master(fault)
        elif kind in (FaultKind.FLUSH_SCRIPTS, FaultKind.DESTROY_GROUP):
            deed.missed = await self._command(fault)
        elif fault.target in self.cluster.members and kind in _OF_PROCESSES:
            deed.missed = await self._strike_process(fault)
        else:
            await self._strike_network(fault)
        deed.ended_ms = _now_ms()

    async def _strike_process(self, fault: Fault) -> str:
        member = self.cluster.members[fault.target]
        if not member.alive:
            return "it was not running"
        if fault.kind in (FaultKind.KILL_WORKER, FaultKind.KILL_GATEWAY):
            self.cluster.kill(fault.target, calm=fault.calm)
        elif fault.kind in (FaultKind.DRAIN_WORKER, FaultKind.DRAIN_GATEWAY):
            member.ask_to_stop()
        else:
            frozen = member.process
            assert frozen is not None
            frozen.send_signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            frozen.send_signal(signal.SIGCONT)  # nothing, if it was killed meanwhile
        return ""

    async def _strike_redis(self, fault: Fault) -> str:
        redis = self.cluster.one
        if redis is None or redis.process is None or redis.process.poll() is not None:
            return "it was not running"
        if fault.kind is FaultKind.FREEZE_REDIS:
            redis.freeze()
            await asyncio.sleep(fault.seconds)
            redis.thaw()
            return ""
        if self._restarting.locked():
            return "it was being restarted"
        async with self._restarting:
            if fault.kind is FaultKind.KILL_REDIS:
                await redis.kill()
            else:
                await redis.stop()
            await asyncio.sleep(fault.seconds)
            await redis.start()
        return ""

    async def _strike_master(self, fault: Fault) -> str:
        many = self.cluster.many
        if many is None:
            return "there is only one"
        if self._restarting.locked():
            return "they had not got over the one before"
        async with self._restarting:
            return await many.strike(fault)

    async def _command(self, fault: Fault) -> str:
        lines = self.cluster.redis.lines
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            try:
                if fault.kind is FaultKind.FLUSH_SCRIPTS:
                    for line in lines:
                        await line.client.script_flush()
                else:
                    for line in lines:
                        await line.client.xgroup_destroy(line.keys.queue, WORKER_GROUP)
                return ""
            except (RedisError, *TRANSIENT_ERRORS) as error:
                if time.monotonic() > give_up:
                    return str(error)
            await asyncio.sleep(_AGAIN_S)

    async def _strike_network(self, fault: Fault) -> None:
        proxies = list(self.cluster.proxies_of(fault.target))
        for proxy in proxies:
            if fault.kind is FaultKind.CUT:
                proxy.cut()
            elif fault.kind is FaultKind.LOSE_REPLIES:
                proxy.lose(fault.amount)
            elif fault.kind is FaultKind.DELAY:
                proxy.delay(fault.amount / 1000)
            else:
                proxy.silence(requests_pass=fault.kind is FaultKind.DEAF)
        await asyncio.sleep(fault.seconds)
        for proxy in proxies:
            if fault.kind is FaultKind.DELAY:
                proxy.delay(0.0)
            elif fault.kind in (FaultKind.SILENCE, FaultKind.DEAF):
                proxy.speak()


_OF_PROCESSES = (
    FaultKind.KILL_WORKER,
    FaultKind.KILL_GATEWAY,
    FaultKind.FREEZE_WORKER,
    FaultKind.FREEZE_GATEWAY,
    FaultKind.DRAIN_WORKER,
    FaultKind.DRAIN_GATEWAY,
)


def _now_ms() -> int:
    return int(time.time() * 1000)

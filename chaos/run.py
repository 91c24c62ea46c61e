"""One run: start all processes, inject faults under load, recover, wait for the end, check."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from chaos import handler_runs, history, logs, oracle, run_log
from chaos.cluster import MAX_INFLIGHT, TASK_LIMITS, Cluster
from chaos.handler_runs import Recovery
from chaos.history import History
from chaos.load import Load, Posted
from chaos.many import ManyServers
from chaos.nemesis import Nemesis
from chaos.oracle import Violation
from chaos.orders import make_orders
from chaos.plan import Fault, On
from chaos.watch import Watchers
from sluice.common.contracts.jobs import TERMINAL, WORKER_GROUP, JobField
from sluice.common.errors import StoreUnavailable
from sluice.common.jobs.audit.auditor import AuditPace, build_auditor
from sluice.common.jobs.partition_clients import PartitionClient
from sluice.common.redis.connection import TRANSIENT_ERRORS

_PROGRESS_EVERY_S = 2.0
_POLL_EVERY_S = 0.3
_STATUS = JobField.STATUS


@dataclass(frozen=True)
class Size:
    """Duration and number of jobs of a run."""

    seconds: float
    jobs: int
    #: Time limit, after the last fault, for all accepted jobs to end.
    settle_s: float


@dataclass
class Result:
    """The outcome of a run."""

    history: History
    nemesis: Nemesis
    violations: list[Violation]
    recoveries: list[Recovery]
    redis_version: str
    watchers: Watchers
    cluster: Cluster
    #: Seconds from the last fault until all jobs had ended.
    settled_s: float


class Run:
    """All parts of one run; call `execute` once."""

    def __init__(
        self, seed: int, size: Size, plan: list[Fault], directory: Path, on: On = On.ONE
    ) -> None:
        self._size = size
        many = None if on is On.ONE else ManyServers(on, seed)
        self._cluster = Cluster(directory, many)
        self._nemesis = Nemesis(self._cluster, plan)
        self._watchers = Watchers(self._cluster.gateway_ports)
        orders = make_orders(seed, size.jobs, size.seconds)
        self._load = Load(orders, self._cluster.gateway_ports, self._accepted)
        self._unended: set[str] = set()
        self._ended = 0
        self._started = time.monotonic()

    async def execute(self) -> Result:
        """Runs to the end and stops all processes, even after an error."""
        background: list[asyncio.Task[None]] = []
        try:
            await self._cluster.start()
            self._started = time.monotonic()
            background.append(asyncio.create_task(self._print_progress()))
            background.append(asyncio.create_task(self._load.run()))
            background.append(asyncio.create_task(self._watch_ends()))
            await self._nemesis.run()
            self._cluster.heal()
            healed = time.monotonic()
            await self._settle(healed + self._size.settle_s)
            settled_s = time.monotonic() - healed
            self._load.stop()
            self._watchers.stop()
            version = await self._cluster.redis.version()
            await self._cluster.stop()
            found, violations = await self._check()
            recoveries = handler_runs.recoveries(self._cluster.kills, found.runs, found.records)
            return Result(
                found, self._nemesis, violations, recoveries, version, self._watchers,
                self._cluster, settled_s,
            )  # fmt: skip
        finally:
            for task in background:
                task.cancel()
            self._load.stop()
            self._watchers.stop()
            await self._cluster.end()

    def _accepted(self, posted: Posted) -> None:
        self._unended.add(posted.job_id)
        if posted.order.watched:
            self._watchers.watch(posted.job_id)

    # -- waiting ---------------------------------------------------------------------------

    async def _settle(self, deadline: float) -> None:
        """Waits until nothing is left to do; what is left at the deadline is a violation."""

        async def all_ended() -> bool:
            return self._load.idle and not self._unended and not self._watchers.open

        async def nothing_queued() -> bool:
            return await history.read_backlog(self._cluster.redis.clients) == (0, 0)

        await _wait_for(all_ended, deadline)
        await _wait_for(nothing_queued, deadline)

    async def _watch_ends(self) -> None:
        """Counts jobs that have ended."""
        clients = self._cluster.redis.clients
        while True:
            await asyncio.sleep(_POLL_EVERY_S)
            open_jobs = list(self._unended)
            try:
                statuses = await clients.query_jobs(open_jobs, _ask_status)
            except (StoreUnavailable, RedisError, *TRANSIENT_ERRORS):
                continue
            for job_id, status in zip(open_jobs, statuses):
                if isinstance(status, bytes) and status.decode() in TERMINAL:
                    self._unended.discard(job_id)
                    self._ended += 1

    async def _print_progress(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_EVERY_S)
            up = [name for name, member in self._cluster.members.items() if member.alive]
            print(
                f"[{time.monotonic() - self._started:4.0f} s] posted {len(self._load.posted)}, "
                f"accepted {self._load.accepted}, ended {self._ended}, watching "
                f"{self._watchers.open}, faults {len(self._nemesis.injected_faults)} of "
                f"{len(self._nemesis.plan)}, up: {' '.join(up)}",
                file=sys.stderr,
                flush=True,
            )

    # -- checks ------------------------------------------------------------------------------

    async def _check(self) -> tuple[History, list[Violation]]:
        clients, lossy = self._cluster.redis.clients, self._cluster.many is not None
        posted = self._load.posted
        job_ids = [job_id for order in posted for job_id in order.job_ids]
        found = History(
            posted=posted,
            records=await history.read_records(clients, job_ids),
            leftovers=await history.read_leftovers(clients, set(job_ids)),
            watched=self._watchers.watched,
            runs=run_log.read_all(self._cluster.run_logs),
            complaints=[*self._cluster.complaints, *logs.complaints(self._cluster.directory)],
        )
        violations = oracle.check(found, lossy=lossy)
        violations += handler_runs.check(found.runs, found.records, MAX_INFLIGHT, TASK_LIMITS)
        # The integrity check of `sluice audit` as a second opinion.
        audit = await build_auditor(
            clients, WORKER_GROUP, AuditPace(grace_s=0.0, recheck_delay_s=0.1)
        ).run()
        violations += (
            Violation(f"audit: {violation.rule.value}", f"job {violation.job_id}", violation.detail)
            for violation in audit.violations
        )
        return found, violations


def _ask_status(pipe: Pipeline, partition: PartitionClient, job_id: str) -> object:
    return pipe.hget(partition.keys.job(job_id), _STATUS)


async def _wait_for(condition: Callable[[], Awaitable[bool]], deadline: float) -> None:
    while time.monotonic() < deadline:
        try:
            if await condition():
                return
        except (RedisError, *TRANSIENT_ERRORS):
            pass
        await asyncio.sleep(_POLL_EVERY_S)

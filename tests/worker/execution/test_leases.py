"""The lease keeper: leases are renewed while their jobs run, and reported when they are lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis import exceptions

from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.queue import Answer
from sluice.common.jobs.store import Lease, WorkerIdentity
from sluice.worker.execution.executor import Outcome
from sluice.worker.execution.leases import JobLeaseRenewer, LeaseKeeper, Renewal
from tests.support.store.jobs import DONE, StoreHarness
from tests.support.worker.harness import MakeWorker


def keeper_of(client: Any, keys: JobKeys, worker: WorkerIdentity) -> LeaseKeeper:
    return LeaseKeeper(JobLeaseRenewer(client, keys, worker), worker.lease_ms / 1000)


@pytest.fixture
def keeper(harness: StoreHarness) -> Any:
    keeper = keeper_of(harness.backend.sync_client(), harness.keys, harness.worker)
    yield keeper
    keeper.stop()


async def deadline(harness: StoreHarness, lease: Lease) -> int:
    return int(await harness.client.hget(harness.keys.lease(lease.job_id), "deadline_ms"))


async def test_held_leases_are_renewed_and_dropped_ones_not(
    harness: StoreHarness, keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if there are more than one call carries."""
    monkeypatch.setattr(JobLeaseRenewer, "batch_size", 2)
    dropped, *held = [await harness.running(f"t{number}") for number in range(6)]
    lost: list[str] = []
    for lease in (dropped, *held):
        keeper.hold(lease, lambda token=lease.token: lost.append(token))  # type: ignore[misc]
        await harness.expire(lease)
    keeper.drop(dropped)
    await asyncio.to_thread(keeper.run_once)
    assert [await deadline(harness, lease) for lease in (dropped, *held)].count(1) == 1
    assert await deadline(harness, dropped) == 1
    reply = await harness.begin(held[0].job_id, held[0].message_id, "another")
    assert reply.answer is Answer.BUSY
    assert lost == []


async def test_a_lost_lease_is_reported_once(harness: StoreHarness, keeper: LeaseKeeper) -> None:
    lost: list[str] = []
    leases = [await harness.running(f"t{n}") for n in range(4)]
    for lease in leases:
        keeper.hold(lease, lambda token=lease.token: lost.append(token))  # type: ignore[misc]
    await harness.take_over(leases[0], "other")
    await harness.client.delete(harness.keys.job(leases[1].job_id))
    await harness.finish(leases[2], DONE)
    for _ in range(2):
        await asyncio.to_thread(keeper.run_once)
    assert lost == ["t0", "t1", "t2"]


class Clock:
    """A replacement for `time` in the keeper."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class BrokenClient:
    """A client whose every command fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    def execute_command(self, *args: Any) -> Any:
        self.calls += 1
        raise self.error

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError("away"),
        exceptions.TimeoutError("slow"),
        OSError("broken"),
        exceptions.ResponseError("BUSY Redis is busy running a script"),
        exceptions.NoPermissionError("NOPERM"),
    ],
    ids=["connection", "timeout", "os", "busy", "noperm"],
)
def test_a_lease_that_is_not_renewed_is_lost_in_time(
    keys: JobKeys, worker: WorkerIdentity, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its whole length another worker may own the job, regardless of the error."""
    clock = Clock()
    monkeypatch.setattr("sluice.worker.execution.leases.time", clock)
    keeper = keeper_of(BrokenClient(error), keys, worker)
    lost: list[float] = []
    keeper.hold(Lease("j", "1-1", 1, "t"), lambda: lost.append(clock.now))
    for passed_s in (0, worker.lease_ms / 1000):
        clock.now = 1000.0 + passed_s
        assert not keeper.run_once()
        assert lost == []  # not at the first error
    clock.now += 0.1
    assert not keeper.run_once()
    assert len(lost) == 1


@pytest.mark.real_redis
async def test_a_handler_that_blocks_the_loop_keeps_its_lease(make_worker: MakeWorker) -> None:
    """Renewal has its own thread: a CPU-bound coroutine cannot starve it."""
    short = WorkerIdentity("workers", "c1", 300, 600)

    async def stubborn(context: Any, payload: Any) -> Any:
        client, until, seen = harness.backend.sync_client(), time.monotonic() + 10, set()
        while len(seen) < 5 and time.monotonic() < until:  # never awaits
            seen.add(client.hget(harness.keys.lease(context.job_id), "deadline_ms"))
        client.close()
        return len(seen)

    harness = make_worker(stubborn, identity=short)
    harness.leases.start()
    attempt = await harness.attempt()
    assert await harness.executor.run(attempt) is Outcome.DONE
    assert (await harness.job(attempt.lease.job_id))[b"result"] == b"5"


async def test_healthy_shows_whether_leases_are_renewed(
    harness: StoreHarness, keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("sluice.worker.execution.leases.time", clock)
    lease_s = harness.worker.lease_ms / 1000
    await asyncio.to_thread(keeper.run_once)  # nothing is held: a good round
    clock.now += lease_s
    assert keeper.healthy
    clock.now += 0.1
    assert not keeper.healthy
    keeper.hold(await harness.running(), lambda: None)
    await asyncio.to_thread(keeper.run_once)
    assert keeper.healthy
    renewer: Any = keeper._renewer
    working, renewer._client = renewer._client, BrokenClient(OSError("away"))
    clock.now += lease_s
    await asyncio.to_thread(keeper.run_once)
    assert keeper.healthy  # the last good round is not too long ago
    clock.now += 0.1
    assert not keeper.healthy
    await asyncio.to_thread(keeper.run_once)  # a lost lease need not be renewed
    await asyncio.to_thread(keeper.run_once)
    assert keeper.healthy
    renewer._client = working


async def test_stop_ends_the_thread(keys: JobKeys, worker: WorkerIdentity) -> None:
    keeper = keeper_of(BrokenClient(OSError()), keys, worker)
    keeper.start()
    keeper.stop()
    assert keeper._thread is not None
    assert not keeper._thread.is_alive()


# -- the keeper with any renewer ---------------------------------------------------------------


class ScriptedRenewer:
    """A renewer whose results the test sets, by job."""

    noun = "lease"
    batch_size = 2

    def __init__(self) -> None:
        self.results: dict[str, Renewal] = {}
        self.calls: list[list[str]] = []
        self.on_call: Callable[[], object] = lambda: None

    def key(self, lease: Lease) -> str:
        return lease.job_id

    def renew(self, leases: Sequence[Lease]) -> list[Renewal]:
        self.calls.append([lease.job_id for lease in leases])
        self.on_call()
        return [self.results.get(lease.job_id, Renewal.RENEWED) for lease in leases]

    def close(self) -> None:
        pass


def lease_of(job_id: str, token: str = "t") -> Lease:
    return Lease(job_id, "1-1", 1, token)


def test_a_drop_leaves_a_newer_lease_of_the_same_job() -> None:
    renewer = ScriptedRenewer()
    lost: list[str] = []
    keeper = LeaseKeeper(renewer, 30)
    older, newer = lease_of("j"), lease_of("j")
    assert older == newer  # distinguished by identity
    keeper.hold(older, lambda: lost.append("older"))
    keeper.hold(newer, lambda: lost.append("newer"))
    keeper.drop(older)
    renewer.results["j"] = Renewal.LOST
    assert keeper.run_once()
    assert (lost, keeper.lost, keeper.good_until("j")) == (["newer"], 1, None)


def test_a_lease_dropped_during_the_call_is_not_reported() -> None:
    renewer = ScriptedRenewer()
    lost: list[str] = []
    keeper = LeaseKeeper(renewer, 30)
    lease = lease_of("j")
    keeper.hold(lease, lambda: lost.append("j"))
    renewer.results["j"] = Renewal.LOST
    renewer.on_call = lambda: keeper.drop(lease)
    assert keeper.run_once()
    assert (lost, keeper.lost) == ([], 0)


def test_a_lease_without_an_answer_does_not_affect_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("sluice.worker.execution.leases.time", clock)
    renewer = ScriptedRenewer()
    lost: list[str] = []
    canceled: list[str] = []
    keeper = LeaseKeeper(renewer, 30)
    for job_id in ("a", "b", "c"):
        keeper.hold(
            lease_of(job_id),
            lambda job_id=job_id: lost.append(job_id),  # type: ignore[misc]
            lambda job_id=job_id: canceled.append(job_id),  # type: ignore[misc]
        )
    renewer.results = {"b": Renewal.UNKNOWN, "c": Renewal.CANCELING}
    clock.now += 30
    assert not keeper.run_once()
    assert (renewer.calls, lost, canceled) == ([["a", "b"], ["c"]], [], ["c"])
    assert [keeper.good_until(job_id) for job_id in "abc"] == [1060, 1030, 1060]
    clock.now += 0.1
    assert not keeper.run_once()
    assert (lost, canceled) == (["b"], ["c", "c"])
    assert keeper.run_once()


def test_a_failed_round_is_retried_sooner() -> None:
    renewer, called = ScriptedRenewer(), threading.Semaphore(0)
    renewer.on_call = called.release
    renewer.results["j"] = Renewal.UNKNOWN
    keeper = LeaseKeeper(renewer, 60, renew_s=60, retry_s=0.01)
    keeper.hold(lease_of("j"), lambda: None)
    keeper.start()
    try:
        assert not called.acquire(timeout=0.1)
        keeper.wake()
        for _ in range(3):
            assert called.acquire(timeout=30)
    finally:
        keeper.stop()

"""The scripts of the package `bullmq`, and completions: those of one tick share a call."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
from typing import Any

import pytest
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import ResponseError

from sluice.common.errors import SettingsError
from sluice.common.features.bullmq import package
from sluice.common.settings.worker import WorkerSettings
from sluice.worker import main as worker_main
from sluice.worker.bullmq import main
from sluice.worker.bullmq.script_client import MOST_PER_BATCH, CompletionBatcher
from sluice.worker.bullmq.scripts import JobCompletion, QueueScripts, ScriptCall
from sluice.worker.execution.context import JobContext
from sluice.worker.execution.leases import Renewal
from sluice.worker.registry import Registry
from tests.support.worker.bullmq import Bull


def test_the_package_of_the_lock_file_is_accepted() -> None:
    main.require_package()


@pytest.fixture(params=["missing", "another", "incomplete"])
def unsupported(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def version(name: str) -> str:
        if request.param == "missing":
            raise importlib.metadata.PackageNotFoundError(name)
        return "3.4.5" if request.param == "another" else "3.4.4"

    monkeypatch.setattr(importlib.metadata, "version", version)
    if request.param == "incomplete":
        monkeypatch.setattr(main, "SCRIPTS", ("moveToMars-3",))
    return str(request.param)


def test_the_error_names_the_setting_and_the_fix(unsupported: str) -> None:
    settings = WorkerSettings(redis_url="redis://127.0.0.1:1", bullmq_queues="q")
    for run in (main.run, lambda settings: worker_main.run_with(Registry(), settings)):
        with pytest.raises(SettingsError, match=r"BULLMQ_QUEUES.*bullmq"):
            run(settings)


def test_a_worker_without_queues_is_an_error() -> None:
    with pytest.raises(SettingsError, match="BULLMQ_QUEUES is not set"):
        main.run(WorkerSettings(redis_url="redis://127.0.0.1:1"))


def test_every_script_has_its_file() -> None:
    for script in main.SCRIPTS:
        keys = int(script.rpartition("-")[2])
        assert f"KEYS[{keys}]" in package.script_source(script)


class RecordingClient:
    """Records the calls, and returns given replies."""

    def __init__(self, *answers: Any) -> None:
        self.calls: list[int] = []
        self.answers = list(answers)

    async def call(self, ends: int) -> Any:
        self.calls.append(ends)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Counting:
    def complete(self, ends: list[JobCompletion]) -> int:
        return len(ends)


def batcher_on(client: RecordingClient) -> CompletionBatcher:
    return CompletionBatcher(client, Counting())  # type: ignore[arg-type]


END = JobCompletion("key", ("id", b"null", "1", b""))


async def test_completions_of_one_tick_share_a_call() -> None:
    client = RecordingClient(list(range(MOST_PER_BATCH)), list(range(MOST_PER_BATCH)), [0])
    ends = batcher_on(client)
    said = [ends.add(END) for _ in range(2 * MOST_PER_BATCH + 1)]
    assert await asyncio.gather(*said) == [*range(MOST_PER_BATCH), *range(MOST_PER_BATCH), 0]
    assert client.calls == [MOST_PER_BATCH, MOST_PER_BATCH, 1]


async def test_an_error_fails_only_its_own_completion() -> None:
    ends = batcher_on(RecordingClient([ResponseError("no"), 0], NoConnection("gone")))
    failed, fine = ends.add(END), ends.add(END)
    with pytest.raises(ResponseError):
        await failed
    assert await fine == 0
    together = [ends.add(END), ends.add(END)]
    found = await asyncio.gather(*together, return_exceptions=True)
    assert [type(error) for error in found] == [NoConnection, NoConnection]


async def test_a_canceled_caller_gets_no_reply() -> None:
    ends = batcher_on(RecordingClient([1, 2]))
    left, stayed = ends.add(END), ends.add(END)
    left.cancel()
    assert await stayed == 2


@pytest.mark.real_redis
async def test_a_job_that_cannot_end_does_not_affect_the_others(bull: Bull) -> None:
    """One has lost its lock, one has another type: the others end in the same call."""
    all_began, go = asyncio.Event(), asyncio.Event()
    began: list[str] = []

    @bull.registry.named("work")
    async def work(context: JobContext, data: Any) -> str:
        began.append(context.job_id)
        if len(began) == 4:
            all_began.set()
        await go.wait()
        return context.job_id

    calls: list[int] = []
    consumer = bull.work(bullmq_concurrency=4, bullmq_lock_ms=60_000, bullmq_lock_renew_ms=30_000)
    complete = QueueScripts.complete

    def counted(ends: list[JobCompletion]) -> ScriptCall:
        calls.append(len(ends))
        return complete(consumer.reader._scripts, ends)

    consumer.reader._scripts.complete = counted  # type: ignore[method-assign,assignment]
    # The keeper renews after subscribing. It must not report the lost lock before the job ends.
    consumer.locks._renewer.renew = lambda leases: [Renewal.RENEWED] * len(leases)  # type: ignore[method-assign]
    ids = [await bull.add("work") for _ in range(4)]
    await asyncio.wait_for(all_began.wait(), 15)
    await bull.redis.set(bull.keys.lock(ids[1]), "somebody else's")
    await bull.redis.delete(bull.keys.job(ids[2]))
    await bull.redis.set(bull.keys.job(ids[2]), "no hash")
    go.set()
    first, last = await bull.ended(ids[0], ids[3])
    assert (first["returnvalue"], last["returnvalue"]) == (f'"{ids[0]}"', f'"{ids[3]}"')
    assert max(calls) == 4
    assert not {"finishedOn", "returnvalue"} & set(await bull.hash(ids[1]))
    assert await bull.redis.get(bull.keys.lock(ids[1])) == "somebody else's"


def test_the_functions_of_the_script_do_not_use_its_arguments() -> None:
    """They are defined once for all jobs of a call, and would see those of another job."""
    functions, body = package.split_script(main.FINISH)
    code = re.sub(r"--\[\[.*?\]\]|--[^\n]*", "", functions, flags=re.DOTALL)
    assert "KEYS" not in code
    assert "ARGV" not in code
    assert body.startswith("local jobIdKey = KEYS[12]")
    assert functions + body == package.script_source(main.FINISH)

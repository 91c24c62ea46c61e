"""Ends of one turn travel together, and each has the answer that is its own."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import ResponseError

from common.features.bullmq import package
from tests.worker.bullmq.kit import Bull
from worker.bullmq import main
from worker.bullmq.script_client import MOST_PER_BATCH, CompletionBatcher
from worker.bullmq.scripts import JobCompletion, QueueScripts, ScriptCall
from worker.execution.context import JobContext


class Line:
    """Keeps what it is told, and answers what it was given."""

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


def ends_on(line: Line) -> CompletionBatcher:
    return CompletionBatcher(line, Counting())  # type: ignore[arg-type]


END = JobCompletion("key", ("id", b"null", "1", b""))


async def test_a_few_in_one_call() -> None:
    line = Line(list(range(MOST_PER_BATCH)), list(range(MOST_PER_BATCH)), [0])
    ends = ends_on(line)
    said = [ends.add(END) for _ in range(2 * MOST_PER_BATCH + 1)]
    assert await asyncio.gather(*said) == [*range(MOST_PER_BATCH), *range(MOST_PER_BATCH), 0]
    assert line.calls == [MOST_PER_BATCH, MOST_PER_BATCH, 1]


async def test_what_fails_fails_for_those_whose_it_is() -> None:
    ends = ends_on(Line([ResponseError("no"), 0], NoConnection("gone")))
    failed, fine = ends.add(END), ends.add(END)
    with pytest.raises(ResponseError):
        await failed
    assert await fine == 0
    together = [ends.add(END), ends.add(END)]
    found = await asyncio.gather(*together, return_exceptions=True)
    assert [type(error) for error in found] == [NoConnection, NoConnection]


async def test_who_has_left_is_not_told() -> None:
    ends = ends_on(Line([1, 2]))
    left, stayed = ends.add(END), ends.add(END)
    left.cancel()
    assert await stayed == 2


async def test_a_job_that_cannot_end_does_not_keep_the_others(bull: Bull) -> None:
    """One has lost its lock, one is something else by now: the others end in the same call."""
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
    crew = bull.work(bullmq_concurrency=4, bullmq_lock_ms=60_000, bullmq_lock_renew_ms=30_000)
    complete = QueueScripts.complete

    def counted(ends: list[JobCompletion]) -> ScriptCall:
        calls.append(len(ends))
        return complete(crew.reader._scripts, ends)

    crew.reader._scripts.complete = counted  # type: ignore[method-assign,assignment]
    ids = [await bull.add("work") for _ in range(4)]
    await asyncio.wait_for(all_began.wait(), 15)
    await bull.redis.set(bull.keys.lock(ids[1]), "somebody else's")
    await bull.redis.delete(bull.keys.job(ids[2]))
    await bull.redis.set(bull.keys.job(ids[2]), "no hash")
    go.set()
    first, last = await bull.ended(ids[0], ids[3])
    assert (first["returnvalue"], last["returnvalue"]) == (f'"{ids[0]}"', f'"{ids[3]}"')
    assert max(calls) == 4
    assert "finishedOn" not in await bull.hash(ids[1])


def test_the_functions_of_the_script_know_nothing_of_its_arguments() -> None:
    """They are made once for all jobs of a call: what they would see is another job's."""
    functions, body = package.split_script(main.FINISH)
    code = re.sub(r"--\[\[.*?\]\]|--[^\n]*", "", functions, flags=re.DOTALL)
    assert "KEYS" not in code
    assert "ARGV" not in code
    assert body.startswith("local jobIdKey = KEYS[12]")
    assert functions + body == package.script_source(main.FINISH)

"""Token events: the first at once, then in batches, always in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from sluice.common.contracts.models import ModelStep
from sluice.common.contracts.queue import Answer
from sluice.common.jobs.store import Lease, PendingEvent, WorkerIdentity
from sluice.worker.errors import AttemptLost
from sluice.worker.execution import context as contexts
from sluice.worker.execution.context import EventBuffer, JobContext, Outbox
from sluice.worker.features.model import token_events as module
from sluice.worker.features.model.token_events import TokenStream, fix_surrogates
from sluice.worker.features.model.types import Completion, Usage
from tests.support.waiting import eventually


class RecordingStore:
    """A store that records events, at once or when released."""

    def __init__(self) -> None:
        self.events: list[PendingEvent] = []
        self.open = asyncio.Event()
        self.open.set()
        self.answer = Answer.OK

    async def emit(
        self, lease: Lease, worker: WorkerIdentity, first: int, events: Sequence[PendingEvent]
    ) -> Answer:
        await self.open.wait()
        self.events += events
        return self.answer


class TokenHarness:
    """An attempt, and the events that it has emitted."""

    def __init__(self, worker: WorkerIdentity) -> None:
        self.store = RecordingStore()
        lease = Lease("j", "1-1", 3, "t")
        self.buffer = EventBuffer(lease, Outbox(self.store, worker))  # type: ignore[arg-type]
        self.context = JobContext(lease, "chat", self.buffer)
        self.tokens = TokenStream(self.context, ModelStep.CHAT)

    async def seen(self) -> list[tuple[str, Any]]:
        """Type and data of all events so far."""
        _, unsent = await self.buffer.take_unsent()
        self.store.events += unsent
        events = self.store.events
        assert {event.step for event in events} <= {"worker.chat"}
        return [(event.type, json.loads(event.data)) for event in events]

    async def deltas(self) -> list[str]:
        return [data["delta"] for _, data in await self.seen()]

    @property
    def timers(self) -> list[Any]:
        """Pending timers of the token stream."""
        scheduled = self.tokens._loop._scheduled  # type: ignore[attr-defined]
        return [each for each in scheduled if not each.cancelled() and "_on_time" in repr(each)]


@pytest.fixture
async def harness(worker: WorkerIdentity) -> TokenHarness:
    return TokenHarness(worker)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable sending by time."""
    monkeypatch.setattr(module, "COALESCE_S", 3600.0)


async def test_the_first_piece_leaves_in_the_same_tick(harness: TokenHarness, never: None) -> None:
    await harness.tokens.text("He")
    assert [event.data for event in harness.buffer._unsent] == [b'{"delta":"He","n":1,"attempt":3}']
    await harness.tokens.text("llo")
    assert await harness.deltas() == ["He"]
    await harness.tokens.flush()
    assert harness.timers == []


async def test_further_pieces_are_sent_by_time(harness: TokenHarness) -> None:
    await harness.tokens.text("a")
    for piece in "bcd":
        await harness.tokens.text(piece)
    assert len(harness.timers) == 1
    await eventually(lambda: not harness.timers)
    assert await harness.seen() == [
        ("message", {"delta": "a", "n": 1, "attempt": 3}),
        ("message", {"delta": "bcd", "n": 2, "attempt": 3}),
    ]
    harness.tokens._last_s -= 1  # after a pause a piece is not delayed
    await harness.tokens.text("e")
    assert await harness.deltas() == ["a", "bcd", "e"]
    assert harness.timers == []


async def test_all_of_it_is_sent_and_counted_in_order(harness: TokenHarness) -> None:
    said = [f"word{number} " for number in range(500)]
    async with harness.tokens as tokens:
        for number, word in enumerate(said):
            await tokens.text(word)
            if number % 50 == 0:
                await asyncio.sleep(0.005)
    seen = await harness.seen()
    assert "".join(data["delta"] for _, data in seen) == "".join(said)
    assert [data["n"] for _, data in seen] == list(range(1, len(seen) + 1))
    assert len(seen) < 100
    assert harness.timers == []


async def test_reasoning_and_answer_keep_their_order(harness: TokenHarness, never: None) -> None:
    async with harness.tokens as tokens:
        await tokens.reasoning("hm")
        await tokens.reasoning("m")
        await tokens.text("Yes")
        await tokens.text(".")
        await tokens.reasoning(" or no")
        await tokens.text(" No")
    assert [(type, data["delta"], data["n"]) for type, data in await harness.seen()] == [
        ("reasoning", "hm", 1), ("reasoning", "m", 2), ("message", "Yes", 1), ("message", ".", 2),
        ("reasoning", " or no", 3), ("message", " No", 3),
    ]  # fmt: skip


async def test_progress_is_throttled(harness: TokenHarness) -> None:
    for done in range(1001):
        await harness.tokens.progress(done, 1000)
    seen = await harness.seen()
    assert seen[0] == ("progress", {"done": 0, "total": 1000, "attempt": 3})
    assert seen[-1] == ("progress", {"done": 1000, "total": 1000, "attempt": 3})
    assert len(seen) < 20


async def test_a_later_round_has_its_number_and_starts_at_once(
    harness: TokenHarness, never: None
) -> None:
    await harness.tokens.text("one")
    await harness.tokens.text(" two")
    await harness.tokens.next_round()
    await harness.tokens.text("three")
    assert [data for _, data in await harness.seen()] == [
        {"delta": "one", "n": 1, "attempt": 3},
        {"delta": " two", "n": 2, "attempt": 3},
        {"delta": "three", "n": 3, "attempt": 3, "round": 2},
    ]


async def test_usage_comes_last(harness: TokenHarness, never: None) -> None:
    await harness.tokens.text("a")
    await harness.tokens.text("b")
    await harness.tokens.usage(Completion("ab", "stop", "m1", Usage(10, 2, 4), "", (), 12, 34, 5.5))
    [_, _, (type, data)] = await harness.seen()
    assert type == "usage"
    assert data == {
        "prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12, "cached_tokens": 4,
        "first_token_ms": 12, "tokens_per_s": 5.5, "model": "m1", "ms": 34, "attempt": 3,
    }  # fmt: skip


async def test_surrogate_pairs_are_joined(harness: TokenHarness, never: None) -> None:
    async with harness.tokens as tokens:
        for piece in ("so \ud83d", "\ude00", "\ud83d", " \ude00 ", "\ud83d"):
            await tokens.text(piece)
    joined = "".join(await harness.deltas())
    assert joined == "so 😀� � �"
    assert joined == fix_surrogates("so \ud83d\ude00\ud83d \ude00 \ud83d")
    valid = "e\u0301 \u0000 \u2028 👩‍👩‍👧 مرحبا"
    assert fix_surrogates(valid) is valid


async def test_a_huge_piece_makes_many_small_events(harness: TokenHarness) -> None:
    huge = "\x00e\u0301👩\u200d👧" * 20_000
    marks = "\u0301" * 50_000
    async with harness.tokens as tokens:
        await tokens.text(huge)
    pieces = await harness.deltas()
    assert "".join(pieces) == huge
    assert max(len(json.dumps(piece)) for piece in pieces) < contexts.MAX_EVENT_BYTES / 4
    assert not [piece for piece in pieces if piece[0] in "\u0301\u200d"]
    assert len(pieces) < 100
    async with harness.tokens as tokens:
        await tokens.text(marks)  # endless combining marks are cut
        await tokens.text("")
        await tokens.reasoning("")
    assert "".join(await harness.deltas()) == huge + marks
    assert all(await harness.deltas())


async def test_the_model_waits_while_redis_lags(harness: TokenHarness, monkeypatch: Any) -> None:
    monkeypatch.setattr(contexts, "MAX_UNSENT_EVENTS", 4)
    harness.store.open.clear()
    said: list[int] = []

    async def talk() -> None:
        async with harness.tokens as tokens:
            for number in range(20):
                await tokens.text(f"{number:04} " + "x" * 600)
                said.append(number)

    talking = asyncio.create_task(talk())
    await eventually(lambda: len(said) == 4)
    await asyncio.sleep(0.1)  # longer than the timer
    assert said == [0, 1, 2, 3]
    harness.store.open.set()
    await asyncio.wait_for(talking, 5)
    assert [int(delta[:4]) for delta in await harness.deltas()] == list(range(20))
    assert harness.timers == []


async def test_a_timer_waits_too_and_tries_again(harness: TokenHarness, monkeypatch: Any) -> None:
    monkeypatch.setattr(contexts, "MAX_UNSENT_EVENTS", 1)
    harness.store.open.clear()
    await harness.tokens.text("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await harness.context.emit("noise")  # fills the buffer
    await harness.tokens.text("b")
    await asyncio.sleep(0.1)
    assert len(harness.timers) == 1
    harness.store.open.set()
    await eventually(lambda: len(harness.store.events) == 3)
    deltas = [json.loads(event.data).get("delta") for event in harness.store.events]
    assert deltas == ["a", None, "b"]
    assert harness.timers == []


async def test_a_lost_attempt_is_raised_by_the_next_write(harness: TokenHarness) -> None:
    await harness.tokens.text("a")
    await harness.tokens.text("b")
    harness.buffer.lost = True
    await eventually(lambda: not harness.timers)
    with pytest.raises(AttemptLost):
        await harness.tokens.text("c" * 600)
    assert harness.timers == []


async def test_an_error_leaves_no_timer_and_loses_no_text(harness: TokenHarness) -> None:
    async def fail() -> None:
        async with harness.tokens as tokens:
            await tokens.text("a")
            await tokens.text("b\ud83d")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert "".join(await harness.deltas()) == "ab�"
    assert harness.timers == []


async def test_pieces_are_sent_by_size_or_sentence(harness: TokenHarness, never: None) -> None:
    for piece in ("It", " rained in the mountains all day", " long", ".", " A. B.", " Then"):
        await harness.tokens.text(piece)
    assert await harness.deltas() == ["It", " rained in the mountains all day long."]
    await harness.tokens.flush()
    for _ in range(64):
        await harness.tokens.text("ééééé ")  # eleven bytes
    assert [len(delta.encode()) for delta in (await harness.deltas())[3:]] == [517]
    await harness.tokens.flush()

"""Values between the worker and its pool processes: plain, and checked where they arrive."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from sluice.common.contracts.images import Stage
from sluice.worker.errors import JobError, TransientError
from sluice.worker.execution.process_pool import plain
from sluice.worker.execution.process_pool.errors import ComputeCrashed, ComputeError
from sluice.worker.execution.process_pool.pool import ProcessPool
from sluice.worker.execution.process_pool.process import _decode_reply
from sluice.worker.execution.process_pool.raised import rebuilt_error
from sluice.worker.features.images.pixels.types import InvalidImage
from tests.support.worker import computing
from tests.support.worker.computing import Drawing, Shape, doubled, undeclared, writes_message

DRAWING = Drawing(Stage.DECODING, [Shape("square", (1, 1, 1, 1))], b"\0\xff", 0.5)


class Hostile:
    """Its pickle runs code where it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self._path),)


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    made = ProcessPool(1, most_reply_bytes=1 << 20)
    yield made
    await made.close()


def message(kind: str, value: Any) -> bytes:
    return json.dumps([kind, value]).encode()


def drawing(**changes: Any) -> bytes:
    """A reply with a drawing in which some fields are of another form."""
    name = plain.name_of(Drawing)
    fields = {
        "stage": {"enum": [plain.name_of(Stage), "decoding"]},
        "shapes": [],
        "data": {"bytes": ""},
        "scale": None,
    }
    return message("returned", {"object": [name, list({**fields, **changes}.values())]})


async def test_objects_pass_in_both_directions(pool: ProcessPool) -> None:
    found = await pool.run(doubled, DRAWING)
    assert (found.stage, found.data, found.scale) == (Stage.DECODING, b"\0\xff", 0.5)
    assert found.shapes == [DRAWING.shapes[0]] * 2
    with pytest.raises(ComputeError, match=r"Drawing' is not accepted"):
        await pool.run(undeclared, DRAWING)


async def test_a_process_runs_no_code_in_the_worker(pool: ProcessPool, tmp_path: Path) -> None:
    """A broken image parser may write anything to the worker. (With pickle, this ran.)"""
    mark = tmp_path / "mark"
    for reply in (pickle.dumps(("returned", Hostile(mark))), pickle.dumps(Hostile(mark), 0)):
        pids = pool.pids
        with pytest.raises(ComputeError, match="invalid reply"):
            await pool.run(writes_message, reply, timeout_s=30)
        assert not mark.exists()
        assert not set(pids) & set(pool.pids), "the process was not killed"
    assert await pool.run(computing.double, 2) == 4


@pytest.mark.parametrize(
    "reply",
    [
        *(b"", b"\xff", b"[" * 100_000, b"null", b"[]", b'["returned"]', b'["executed",1]'),
        *(b'[["returned"],1]', b'["raised",1]', b'["raised",["builtins:ValueError"]]'),
        message("returned", {"object": ["subprocess:Popen", ["id"]]}),
        message("returned", {"enum": ["builtins:eval", "1"]}),
        message("returned", {"enum": [plain.name_of(Drawing), 1]}),
        message("returned", {"unknown": 1}),
        message("returned", {"bytes": "?"}),
        message("returned", {"set": [[]]}),
        message("returned", {"object": [plain.name_of(Drawing), [1]]}),
        message("returned", {"bytes": "", "list": []}),
        message("returned", "not a drawing"),
        *(drawing(stage="decoding"), drawing(stage={"enum": [plain.name_of(Stage), "x"]})),
        *(drawing(shapes=[1]), drawing(shapes=None), drawing(data="x"), drawing(scale="1")),
        drawing(shapes=[{"object": [plain.name_of(Shape), ["x", {"tuple": ["1"]}]]}]),
    ],
)
async def test_an_invalid_reply_fails_its_call_only(pool: ProcessPool, reply: bytes) -> None:
    assert _decode_reply(drawing(), writes_message) == (
        "returned",
        Drawing(Stage.DECODING, [], b""),
    )
    with pytest.raises(ComputeError, match="invalid reply"):
        await pool.run(writes_message, reply, timeout_s=30)
    assert await pool.run(computing.double, 2) == 4


async def test_a_reply_has_a_limit(pool: ProcessPool) -> None:
    with pytest.raises(ComputeError, match="at most 1048576"):
        await pool.run(computing.writes, b"\0\0\0\0\x40\0\0\0", timeout_s=30)
    with pytest.raises(ComputeError, match="at most 1048576"):
        await pool.run(computing.long_answer, 1 << 20)


def test_only_known_exceptions_are_created() -> None:
    def error(name: str, *arguments: Any, wait_s: Any = None) -> Exception:
        return rebuilt_error([name, list(arguments), wait_s, "its text"])

    missing = error("builtins:FileNotFoundError", 2, "no such file")
    assert isinstance(missing, FileNotFoundError)
    later = error(plain.name_of(TransientError), "later", wait_s=1.5)
    assert isinstance(later, TransientError)
    assert later.retry_after_s == 1.5
    for wait_s in ("1", -1, float("inf"), float("nan")):
        later = error(plain.name_of(TransientError), "later", wait_s=wait_s)
        assert isinstance(later, TransientError)
        assert later.retry_after_s is None
    assert type(error(plain.name_of(JobError), "x")) is JobError
    assert isinstance(error(plain.name_of(InvalidImage), "DECODE_FAILED", "damaged"), InvalidImage)
    for name in (
        *("builtins:SystemExit", "builtins:MemoryError", "builtins:StopIteration"),
        *("builtins:print", "builtins:nothing", "subprocess:Popen", "asyncio:CancelledError"),
        *("subprocess:CalledProcessError", "rubbish", plain.name_of(InvalidImage)),
    ):
        found = error(name, "touch")
        assert type(found) is ComputeError, name
        assert str(found) == "its text"


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        *((1, int, True), (True, int, False), (1, float, True), ("1", float, False)),
        *((None, None, True), (None, int | None, True), ("x", int | bytes, False)),
        *(("a", Literal["a", "b"], True), ("c", Literal["a", "b"], False)),
        *((["a"], list[str], True), ([1], list[str], False), ({1: "a"}, dict[int, str], True)),
        *(({1: 2}, dict[int, str], False), ((1, "a"), tuple[int, str], True)),
        *(
            ((1,), tuple[int, str], False),
            ((1, 2), tuple[int, ...], True),
            ((1, 2), tuple[int], False),
        ),
        *(((1, 2), Any, True), (object(), list, False), (frozenset({1}), frozenset[str], False)),
    ],
)
def test_the_type_of_a_value(value: Any, annotation: Any, expected: bool) -> None:
    assert plain.fits(value, annotation) is expected


def test_values_are_the_same_again() -> None:
    value = {(1, "a"): [None, True, 1.5, {1}, frozenset({b"x"})], "\ud800": DRAWING}
    assert plain.loads(plain.dumps(value), plain.find) == value
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(plain.NotPlain, match="nested too deeply"):
        plain.dumps(deep)
    if hasattr(sys, "get_int_max_str_digits"):
        with pytest.raises(plain.NotPlain, match="digits"):
            plain.dumps([10**5000])


async def test_a_process_that_ends_in_a_reply(pool: ProcessPool) -> None:
    with pytest.raises(ComputeCrashed):
        await pool.run(computing.writes_and_dies, b"\0\0\0\0\0\0\0\x09partial", timeout_s=30)

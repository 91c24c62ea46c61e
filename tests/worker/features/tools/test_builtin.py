"""The built-in tools: results, refusals, and bounded effort."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.worker.features.tools.builtin.arguments import ToolInputError
from sluice.worker.features.tools.builtin.calculator import evaluate
from sluice.worker.features.tools.builtin.search_documents import search_tool
from sluice.worker.features.tools.errors import InvalidArguments
from sluice.worker.features.tools.toolbox import ToolBox
from tests.support.worker.model import FakeJob
from tests.support.worker.tools import CountedTools, use


@pytest.mark.parametrize(
    ("expression", "value"),
    [("2 + 3 * 4", 14), ("(2 + 3) * 4", 20), ("2 ** 10", 1024), ("2 ** 3 ** 2", 512),
     ("-2 ** 2", -4), ("5 ** 0", 1), ("2 ** -1", 0.5), ("(-8) ** 3.0", -512.0), ("7 / 2", 3.5),
     ("7 // 2", 3), ("-7 // 2", -4), ("-7 % 3", 2), ("+5 - -5", 10), ("1e3", 1000.0),
     ("1_000", 1000), (" \t2 +\n 2 ", None), ("sqrt(2) ** 2", math.sqrt(2) ** 2),
     ("sin(pi / 2)", 1.0), ("log(8, 2)", 3.0), ("min(3, 1, 2) + max(1, 2) + sum(1, 2, 3)", 9),
     ("round(2.567, 2)", 2.57), ("round(2.4)", 2), ("factorial(20)", math.factorial(20)),
     ("comb(52, 5)", 2598960), ("gcd(12, 18) + lcm(4, 6)", 18),
     ("abs(-3) + floor(2.9) + ceil(2.1) + trunc(-1.5)", 7), ("hypot(3, 4)", 5.0),
     ("10 % 4 + e - e", 2.0), ("1" + "+1" * 400, 401), ("(" * 40 + "1" + ")" * 40, 1)],
)  # fmt: skip
def test_arithmetic(expression: str, value: Any) -> None:
    if value is None:
        with pytest.raises(ToolInputError):
            evaluate(expression)
    else:
        assert evaluate(expression) == pytest.approx(value)
        assert type(evaluate(expression)) is type(value)


@pytest.mark.parametrize(
    "expression",
    ["9**9**9", "9**9**9**9", "(-9)**9**9", "2**4097", "10**10**10", "1.5**9999999999",
     "factorial(100000)", "factorial(factorial(10))", "factorial(-1)", "factorial(2.5)",
     "comb(10**9, 10**8)", "perm(10**9, 5)", "round(5, -10**9)", "round(5, 10**9)",
     "round(1.5, 0.5)", "(2**4000) * (2**4000)", "9" * 999 + "**9", "exp(10**6)", "1e308 * 10",
     "1e309", "1e308 * 10 - 1e308 * 10", "(-8) ** 0.5", "sqrt(-1)", "log(0)", "1 / 0", "1 % 0",
     "0 ** -1", "2^8", "'a' * 10**9", '"a" * 3', "[1] * 10**9", "(1,) * 10**9", "1j", "True + 1",
     "None", "x + 1", "pi.real", "().__class__.__bases__", "__import__(1)", "abs.__self__",
     "lambda: 1", "1 if 1 else 2", "1 < 2", "1 and 2", "1or 2", "1 << 99999999", "~1", "not 1",
     "x := 5", "abs(x=1)", "min(*pi)", "min()", "sqrt()", "sqrt(1, 2, 3)", "eval(1)", "f''",
     "'\\d'", "(" * 500 + "1" + ")" * 499, "(" * 100 + "1" + ")" * 100 + "+" * 10,
     "-" * 999 + "1", "abs(" * 200 + "1" + ")" * 200, "\x00", "１＋１", "1; 2", "", "  ",
     "import os"],
)  # fmt: skip
def test_hostile_expressions_are_refused_at_once(expression: str) -> None:
    began = time.process_time()
    with pytest.raises(ToolInputError) as caught:
        evaluate(expression)
    assert time.process_time() - began < 0.5
    assert str(caught.value)
    assert caught.value.kind == "tool_failed"
    assert caught.value.permanent


NUMBERS = ["1", "2.5", "9", "0", "99999", "e", "pi", "1e300"]
SIGNS = ["+", "-", "*", "/", "//", "%", "**", "(", ")", ","]
NAMES = ["sqrt(", "factorial(", "round(", "min(", "lcm(", "comb(", "exp(", "pow("]
PIECES = st.sampled_from([*NUMBERS, *SIGNS, *NAMES])


@settings(max_examples=300, deadline=1000)
@given(st.lists(PIECES, max_size=40).map("".join))
def test_no_expression_breaks_it(expression: str) -> None:
    try:
        value = evaluate(expression)
    except ToolInputError:
        return
    assert isinstance(value, (int, float))
    assert math.isfinite(value) or value.bit_length() <= 4096  # type: ignore[union-attr]


def test_all_have_schemas_and_descriptions_and_may_be_repeated() -> None:
    toolbox = CountedTools().toolbox
    names = ["calculator", "convert_units", "date_math", "json_pick", "now", "text_stats"]
    assert toolbox.names() == names
    for name in names:
        tool = toolbox.find(name)
        assert tool.repeatable
        assert len(tool.description) > 20
        assert tool.parameters["additionalProperties"] is False
        with pytest.raises(InvalidArguments):
            tool.parse({"no_such_member": 1})


async def test_now() -> None:
    said = await use("now")
    assert abs(said["unix_s"] - time.time()) < 5
    assert datetime.fromisoformat(said["iso"]).tzinfo == timezone.utc
    assert said["date"] == said["iso"][:10]
    there = await use("now", timezone="Asia/Kathmandu")
    assert there["iso"].endswith("+05:45")


@pytest.mark.parametrize(
    ("start", "add", "iso", "weekday"),
    [
        ("2024-02-28", {"days": 1}, "2024-02-29", "Thursday"),
        ("2024-01-31", {"months": 1}, "2024-02-29", "Thursday"),
        ("2023-01-31", {"months": 1}, "2023-02-28", "Tuesday"),
        ("2024-02-29", {"years": 1}, "2025-02-28", "Friday"),
        ("2024-03-15", {"months": -3}, "2023-12-15", "Friday"),
        ("2024-12-31", {"weeks": 1, "days": -7}, "2024-12-31", "Tuesday"),
        ("2024-01-01", {"hours": 36}, "2024-01-02T12:00:00", "Tuesday"),
        ("2024-01-01T10:00:00Z", {"minutes": 90}, "2024-01-01T11:30:00+00:00", "Monday"),
        ("2024-01-01T10:00:00+02:00", {"seconds": 1}, "2024-01-01T10:00:01+02:00", "Monday"),
    ],
)
async def test_adding_to_a_date(start: str, add: Any, iso: str, weekday: str) -> None:
    assert await use("date_math", start=start, add=add) == {"iso": iso, "weekday": weekday}


async def test_the_difference_between_dates() -> None:
    said = await use("date_math", start="2024-01-01", end="2025-01-01")
    assert said == {"days": 366, "seconds": 366 * 86400, "weeks": 52.286}
    said = await use("date_math", start="2024-01-01T00:00:00Z", end="2024-01-01T12:00:00+00:00")
    assert said["days"] == 0.5
    assert (await use("date_math", start="2024-01-02", end="2024-01-01"))["days"] == -1
    assert (await use("date_math", start="now", end="now"))["days"] == 0
    assert (await use("date_math", start="today", add={"days": 0}))["iso"]


@pytest.mark.parametrize(
    ("value", "source", "target", "result"),
    [(1, "mi", "km", 1.609344), (100, "km/h", "m/s", 27.7777777778), (32, "F", "C", 0),
     (-40, "°C", "°F", -40), (0, "K", "C", -273.15), (1, "GiB", "MB", 1073.741824),
     (8, "bit", "B", 1), (1, "kWh", "J", 3.6e6), (180, "deg", "rad", 3.14159265359),
     (1, "m³", "l", 1000), (5, "µm", "mm", 0.005), (0.1, "m", "cm", 10)],
)  # fmt: skip
async def test_units(value: float, source: str, target: str, result: float) -> None:
    said = await use("convert_units", value=value, from_unit=source, to_unit=target)
    assert said["value"] == pytest.approx(result, abs=1e-12)


async def test_text_is_counted() -> None:
    said = await use("text_stats", text="Hello, world! It's a well-known fact.\n\nIsn't it? Yes")
    counts = {"words": 9, "sentences": 4, "paragraphs": 2, "lines": 3, "characters": 52}
    assert counts.items() <= said.items()
    said = await use("text_stats", text="né né")
    assert (said["bytes"], said["unique_words"]) == (7, 1)
    assert said["most_frequent"] == [{"word": "né", "times": 2}]
    said = await use("text_stats", text="")
    assert {said[name] for name in ("characters", "words", "sentences", "lines")} == {0}
    with pytest.raises(InvalidArguments):
        await use("text_stats", text="x" * 100_001)
    for text in ("." * 100_000, "\n" * 100_000, "a'" * 50_000, "-" * 100_000, " \n" * 50_000):
        began = time.process_time()
        await use("text_stats", text=text)
        assert time.process_time() - began < 2


DOCUMENT = {"items": [{"name": "a"}, {"name": None}], "a/b": 1, "m~n": 2, "": 3, " ": 4}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [("", DOCUMENT), ("/items/0/name", "a"), ("/items/1/name", None), ("/a~1b", 1), ("/m~0n", 2),
     ("/", 3), ("/ ", 4), ("/items/1", {"name": None})],
)  # fmt: skip
async def test_pointers(pointer: str, value: Any) -> None:
    assert await use("json_pick", document=DOCUMENT, pointer=pointer) == value
    assert await use("json_pick", text=json.dumps(DOCUMENT), pointer=pointer) == value
    assert await use("json_pick", document=None, pointer="") is None


DAY = "2024-01-01"
INVALID: list[tuple[str, dict[str, Any]]] = [
    *(("now", {"timezone": zone})
      for zone in ("Mars/Olympus", "../../etc/passwd", "/etc/passwd", "Europe", "", "\x00",
                   "a" * 65, 5, "UTC\n")),
    *(("date_math", {"start": DAY, "add": add})
      for add in ({"years": 9999}, {"years": -2024}, {"days": 10_000_000}, {"days": 10**12},
                  {"months": 1.5}, {"moons": 1})),
    *(("date_math", {"start": start, "add": {}}) for start in ("2024-13-01", "", "z", "x" * 100)),
    *(("date_math", arguments)
      for arguments in ({"start": DAY}, {"start": DAY, "add": {}, "end": DAY}, {"end": "now"},
                        {"start": "yesterday", "end": "now"},
                        {"start": f"{DAY}T00:00:00", "end": f"{DAY}T00:00:00Z"})),
    *(("convert_units", {"value": value, "from_unit": source, "to_unit": target})
      for value, source, target in (
          (1, "m", "kg"), (1, "parsec", "m"), (1, "m", ""), (-1, "K", "C"), (1e308, "km", "nm"),
          (float("nan"), "m", "km"), (float("inf"), "m", "km"), ("1", "m", "km"),
          (True, "m", "km"), (1, "m" * 20, "km"))),
    *(("json_pick", {"document": DOCUMENT, "pointer": pointer})
      for pointer in ("items", "/absent", "/items/2", "/items/-1", "/items/01", "/items/-",
                      "/items/1e0", "/items/" + "9" * 900, "/a/b/c", "/m~n", "/m~2")),
    *(("json_pick", arguments)
      for arguments in ({"document": 5, "pointer": "/a"}, {"text": "{", "pointer": ""},
                        {"text": "[" * 100_000, "pointer": ""}, {"pointer": ""}, {"document": {}},
                        {"text": "{}", "document": {}, "pointer": ""},
                        {"document": {}, "pointer": "/" * 2000})),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments"), INVALID)
async def test_invalid_arguments_are_refused(tool: str, arguments: dict[str, Any]) -> None:
    with pytest.raises((ToolInputError, InvalidArguments)) as caught:
        await use(tool, **arguments)
    assert 0 < len(str(caught.value)) < 1000


@dataclass(frozen=True)
class Hit:
    document_id: str
    quote: str


class DocumentStore:
    def __init__(self, hits: list[Any]) -> None:
        self.hits = hits
        self.asked: list[Any] = []

    async def search(self, tenant: str, ns: str, query: str, k: int) -> list[Any]:
        self.asked.append((tenant, ns, query, k))
        return self.hits[:k]


async def test_only_documents_of_the_tenant_are_searched() -> None:
    library, toolbox = DocumentStore([Hit("d1", "one"), {"document_id": "d2"}]), ToolBox()
    toolbox.put(search_tool(library))
    for arguments in (
        {"query": ""}, {"query": "x" * 3000}, {"query": "a", "ns": "../x"},
        {"query": "a", "ns": "a\n"}, {"query": "a", "top_k": 0}, {"query": "a", "top_k": 10**6},
        {"query": "a", "tenant": "other"},
    ):  # fmt: skip
        with pytest.raises(InvalidArguments):
            await use("search_documents", toolbox, **arguments)
    said = await use("search_documents", toolbox, query="fish")
    assert said == [{"document_id": "d1", "quote": "one"}, {"document_id": "d2"}]
    await use("search_documents", toolbox, query="fish", ns="sea", top_k=1)
    assert library.asked == [
        (FakeJob.tenant, "default", "fish", 5),
        (FakeJob.tenant, "sea", "fish", 1),
    ]


async def test_the_calculator_as_a_tool() -> None:
    for expression, value in (
        ("2 ** 52", 2**52),
        ("2 ** 64", str(2**64)),  # numbers beyond a double are text
        ("-(2 ** 100)", str(-(2**100))),
    ):
        assert await use("calculator", expression=expression) == {"value": value}
    with pytest.raises(InvalidArguments, match='at "/expression"'):
        await use("calculator", expression="1+" * 5000 + "1")
    for invalid in ("", 5):
        with pytest.raises(InvalidArguments):
            await use("calculator", expression=invalid)

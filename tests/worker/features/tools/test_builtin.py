"""The other built-in tools: results, and errors for invalid arguments."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest

from tests.worker.features.tools.kit import Job, builtin_tools, use
from worker.features.tools.builtin.arguments import ToolInputError
from worker.features.tools.builtin.search_documents import search_tool
from worker.features.tools.errors import InvalidArguments
from worker.features.tools.toolbox import ToolBox


def test_all_have_schemas_and_descriptions_and_may_be_repeated() -> None:
    toolbox = builtin_tools()
    assert toolbox.names() == [
        "calculator",
        "convert_units",
        "date_math",
        "json_pick",
        "now",
        "text_stats",
    ]
    for name in toolbox.names():
        tool = toolbox.find(name)
        assert tool.repeatable
        assert len(tool.description) > 20
        assert tool.parameters["additionalProperties"] is False
        with pytest.raises(InvalidArguments):
            tool.parse({"no_such_member": 1})


# -- now, date_math -------------------------------------------------------------------------------


async def test_now() -> None:
    said = await use("now")
    assert abs(said["unix_s"] - time.time()) < 5
    assert datetime.fromisoformat(said["iso"]).tzinfo == timezone.utc
    assert said["date"] == said["iso"][:10]
    there = await use("now", timezone="Asia/Kathmandu")
    assert there["iso"].endswith("+05:45")


@pytest.mark.parametrize(
    "zone",
    ["Mars/Olympus", "../../etc/passwd", "/etc/passwd", "Europe", "", "\x00", "a" * 65, 5, "UTC\n"],
)
async def test_unknown_time_zones(zone: Any) -> None:
    with pytest.raises((ToolInputError, InvalidArguments)):
        await use("now", timezone=zone)


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
    "arguments",
    [
        {"start": "2024-01-01"},
        {"start": "2024-01-01", "add": {}, "end": "2024-01-01"},
        {"start": "2024-01-01", "add": {"years": 9999}},
        {"start": "2024-01-01", "add": {"years": -2024}},
        {"start": "2024-01-01", "add": {"days": 10_000_000}},
        {"start": "2024-01-01", "add": {"days": 10**12}},
        {"start": "2024-01-01", "add": {"months": 1.5}},
        {"start": "2024-01-01", "add": {"moons": 1}},
        {"start": "2024-13-01", "add": {}},
        {"start": "", "add": {}},
        {"start": "z", "add": {}},
        {"start": "yesterday", "end": "now"},
        {"start": "2024-01-01T00:00:00", "end": "2024-01-01T00:00:00Z"},
        {"start": "x" * 100, "add": {}},
        {"end": "now"},
    ],
)
async def test_invalid_dates(arguments: dict[str, Any]) -> None:
    with pytest.raises((ToolInputError, InvalidArguments)) as caught:
        await use("date_math", **arguments)
    assert str(caught.value)


# -- convert_units --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "source", "target", "result"),
    [
        (1, "mi", "km", 1.609344),
        (100, "km/h", "m/s", 27.7777777778),
        (32, "F", "C", 0),
        (-40, "°C", "°F", -40),
        (0, "K", "C", -273.15),
        (1, "GiB", "MB", 1073.741824),
        (8, "bit", "B", 1),
        (1, "kWh", "J", 3.6e6),
        (180, "deg", "rad", 3.14159265359),
        (1, "m³", "l", 1000),
        (5, "µm", "mm", 0.005),
        (0.1, "m", "cm", 10),
    ],
)
async def test_units(value: float, source: str, target: str, result: float) -> None:
    said = await use("convert_units", value=value, from_unit=source, to_unit=target)
    assert said["value"] == pytest.approx(result, abs=1e-12)


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [
        (1, "m", "kg"),
        (1, "parsec", "m"),
        (1, "m", ""),
        (-1, "K", "C"),
        (1e308, "km", "nm"),
        (float("nan"), "m", "km"),
        (float("inf"), "m", "km"),
        ("1", "m", "km"),
        (True, "m", "km"),
        (1, "m" * 20, "km"),
    ],
)
async def test_invalid_units(value: Any, source: str, target: str) -> None:
    with pytest.raises((ToolInputError, InvalidArguments)) as caught:
        await use("convert_units", value=value, from_unit=source, to_unit=target)
    assert str(caught.value)


# -- text_stats -----------------------------------------------------------------------------------


async def test_text_is_counted() -> None:
    said = await use("text_stats", text="Hello, world! It's a well-known fact.\n\nIsn't it? Yes")
    assert said["words"] == 9
    assert said["sentences"] == 4
    assert said["paragraphs"] == 2
    assert said["lines"] == 3
    assert said["characters"] == 52
    said = await use("text_stats", text="né né")
    assert (said["bytes"], said["unique_words"]) == (7, 1)
    assert said["most_frequent"] == [{"word": "né", "times": 2}]


async def test_empty_and_oversized_texts() -> None:
    said = await use("text_stats", text="")
    assert {said[name] for name in ("characters", "words", "sentences", "lines")} == {0}
    with pytest.raises(InvalidArguments):
        await use("text_stats", text="x" * 100_001)


@pytest.mark.parametrize(
    "text", ["." * 100_000, "\n" * 100_000, "a'" * 50_000, "-" * 100_000, " \n" * 50_000]
)
async def test_no_text_takes_long_to_count(text: str) -> None:
    began = time.process_time()
    await use("text_stats", text=text)
    assert time.process_time() - began < 2


# -- json_pick ------------------------------------------------------------------------------------

DOCUMENT = {"items": [{"name": "a"}, {"name": None}], "a/b": 1, "m~n": 2, "": 3, " ": 4}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", DOCUMENT),
        ("/items/0/name", "a"),
        ("/items/1/name", None),
        ("/a~1b", 1),
        ("/m~0n", 2),
        ("/", 3),
        ("/ ", 4),
        ("/items/1", {"name": None}),
    ],
)
async def test_pointers(pointer: str, value: Any) -> None:
    assert await use("json_pick", document=DOCUMENT, pointer=pointer) == value


async def test_a_document_as_text() -> None:
    assert await use("json_pick", text='{"a": [1, 2]}', pointer="/a/1") == 2
    assert await use("json_pick", document=None, pointer="") is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"document": DOCUMENT, "pointer": "items"},
        {"document": DOCUMENT, "pointer": "/absent"},
        {"document": DOCUMENT, "pointer": "/items/2"},
        {"document": DOCUMENT, "pointer": "/items/-1"},
        {"document": DOCUMENT, "pointer": "/items/01"},
        {"document": DOCUMENT, "pointer": "/items/-"},
        {"document": DOCUMENT, "pointer": "/items/1e0"},
        {"document": DOCUMENT, "pointer": "/items/" + "9" * 900},
        {"document": DOCUMENT, "pointer": "/a/b/c"},
        {"document": DOCUMENT, "pointer": "/m~n"},
        {"document": DOCUMENT, "pointer": "/m~2"},
        {"document": 5, "pointer": "/a"},
        {"text": "{", "pointer": ""},
        {"text": "[" * 100_000, "pointer": ""},
        {"text": "{}", "document": {}, "pointer": ""},
        {"pointer": ""},
        {"document": {}},
        {"document": {}, "pointer": "/" * 2000},
    ],
)
async def test_pointers_without_a_target(arguments: dict[str, Any]) -> None:
    with pytest.raises((ToolInputError, InvalidArguments)) as caught:
        await use("json_pick", **arguments)
    assert 0 < len(str(caught.value)) < 1000


# -- search_documents -----------------------------------------------------------------------------


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
    said = await use("search_documents", toolbox, query="fish")
    assert said == [{"document_id": "d1", "quote": "one"}, {"document_id": "d2"}]
    await use("search_documents", toolbox, query="fish", ns="sea", top_k=1)
    assert library.asked == [(Job.tenant, "default", "fish", 5), (Job.tenant, "sea", "fish", 1)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": ""},
        {"query": "x" * 3000},
        {"query": "a", "ns": "../x"},
        {"query": "a", "ns": "a\n"},
        {"query": "a", "top_k": 0},
        {"query": "a", "top_k": 10**6},
        {"query": "a", "tenant": "other"},
    ],
)
async def test_a_search_cannot_leave_its_bounds(arguments: dict[str, Any]) -> None:
    library, toolbox = DocumentStore([]), ToolBox()
    toolbox.put(search_tool(library))
    with pytest.raises(InvalidArguments):
        await use("search_documents", toolbox, **arguments)
    assert library.asked == []

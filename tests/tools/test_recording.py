"""The picture of a recorded terminal session."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tools.recording import COLUMNS, COMMANDS, Line, render, wrapped

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{NAMESPACE}text")]


def test_lines_are_drawn_with_their_times() -> None:
    long = "x" * (COLUMNS + 1)
    lines = [Line(1.0, "$ a <b> & 'c'", "command"), Line(2.0, ""), Line(2.0, long, "event")]
    assert [line.text for line in wrapped(lines)] == ["$ a <b> & 'c'", "", long[:-1], "x"]
    svg = render(lines)
    assert texts(svg) == ["$ a <b> & 'c'", long[:-1], "x"]
    assert "@keyframes l0{0%,10.00%{opacity:0}10.01%{opacity:1}}" in svg
    assert "<script" not in svg


def test_the_committed_recording_shows_these_commands() -> None:
    drawn = texts((ROOT / "docs" / "screenshots" / "session.svg").read_text())
    commands = [text for text in drawn if text.startswith(("$ ", "> "))]
    executed = [line for each in COMMANDS for line in each.format(port=8080).splitlines()]
    assert [text[2:] for text in commands] == executed
    assert {"event: queued", "event: running", "event: message", "event: done"} <= set(drawn)

"""Mutations of Lua scripts: dropped statements, negated conditions, other comparisons, swapped
writes. Only mutants that Lua 5.1 can load are returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from lupa.lua51 import LuaRuntime

from tools.mutants.mutant import Change, edit

#: Statements longer than this are not dropped: they define functions.
MAX_STATEMENT_LINES = 6
_HIDDEN = re.compile(
    r"--\[\[.*?\]\]|--[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL
)
_CONDITION = re.compile(r"\b(?:if|elseif)\b(?P<condition>.+?)\bthen\b", re.DOTALL)
_COMPARISON = re.compile(r"<=|>=|==|~=|<|>")
_OTHER_COMPARISON = {"<=": "<", ">=": ">", "<": "<=", ">": ">=", "==": "~=", "~=": "=="}
_LOGIC = re.compile(r"\b(?:and|or)\b")
#: A call or a return, or an assignment that is not the declaration of a local variable.
_STATEMENT = re.compile(
    r"(?!(?:local|if|elseif|else|for|while|repeat|until|end|function|operations)\b)"
    r"(?P<kind>return\b|[\w.]+\(|[\w.\[\]# +,]+=(?!=))"
)
_DROPS = {
    "drop-expire": re.compile(r"'P?EXPIRE(?:AT)?'"),
    "drop-ack": re.compile(r"'X(?:ACK|DEL|ACKDEL)'|^acknowledge\("),
    "drop-return": re.compile(r"^return\b"),
    "drop-call": re.compile(r"^[\w.]+\("),
    "drop-assignment": re.compile(""),
}


class Statement(NamedTuple):
    """Whole lines, from `start` to `end` (offsets of characters)."""

    start: int
    end: int
    line: int
    indent: int
    text: str

    @property
    def operator(self) -> str:
        text = self.text.lstrip()
        return next(name for name, pattern in _DROPS.items() if pattern.search(text))


def hide(source: str) -> str:
    """The source with comments and strings overwritten, at the same offsets."""
    return _HIDDEN.sub(lambda match: re.sub(r"[^\n]", "_", match[0]), source)


class LuaMutator:
    """Finds the mutations of Lua sources, which may contain `$NAME` of the contracts."""

    def __init__(self) -> None:
        runtime = LuaRuntime()
        self._load = runtime.eval("function(text) return loadstring(text) ~= nil end")

    def is_valid(self, source: str) -> bool:
        return bool(self._load(re.sub(r"\$[A-Z_]+", "'name'", source)))

    def changes(self, source: str) -> Iterator[Change]:
        """Every valid mutation, in a fixed order."""
        for change in self._candidates(source):
            if self.is_valid(change.apply()):
                yield change

    def _candidates(self, source: str) -> Iterator[Change]:
        code = _without_comments(source)
        hidden = hide(source)

        def line_of(offset: int) -> int:
            return source.count("\n", 0, offset) + 1

        for match in _CONDITION.finditer(hidden):
            start, end = match.span("condition")
            condition = code[start:end].strip()
            yield Change("negate", line_of(start), edit(source, start, end, f" not ({condition}) "))
        for match in _COMPARISON.finditer(hidden):
            other = _OTHER_COMPARISON[match[0]]
            yield Change("compare", line_of(match.start()), edit(source, *match.span(), other))
        for match in _LOGIC.finditer(hidden):
            other = "or" if match[0] == "and" else "and"
            yield Change("logic", line_of(match.start()), edit(source, *match.span(), other))
        statements = list(self.statements(source))
        for statement in statements:
            yield Change(
                statement.operator, statement.line, edit(source, statement.start, statement.end, "")
            )
        for first, second in pairwise(statements):
            if first.end == second.start and first.indent == second.indent:
                swapped = second.text + first.text
                if not re.search(r"^\s*return\b", swapped, re.MULTILINE):
                    yield Change("swap", first.line, edit(source, first.start, second.end, swapped))

    def statements(self, source: str) -> Iterator[Statement]:
        """Calls, returns and assignments to existing variables that a mutant can drop."""
        lines = source.splitlines(keepends=True)
        offset = 0
        for number, line in enumerate(lines):
            if _STATEMENT.match(line.strip()) is not None:
                for length in range(1, MAX_STATEMENT_LINES + 1):
                    text = "".join(lines[number : number + length])
                    end = offset + len(text)
                    if self.is_valid(text) and self.is_valid(source[:offset] + source[end:]):
                        indent = len(line) - len(line.lstrip())
                        yield Statement(offset, end, number + 1, indent, text)
                        break
            offset += len(line)


def _without_comments(source: str) -> str:
    """The source with comments overwritten by spaces, at the same offsets."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0]) if match[0].startswith("--") else match[0]

    return _HIDDEN.sub(blank, source)

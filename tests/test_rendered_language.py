"""The word list applies to texts as users see them: OpenAPI, /docs, help, problems, dashboard.

`test_language` checks sources; this checks what is generated from them, including single words such
as labels, which are equal to identifiers in sources.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from deploy.installer import cli as installer
from sluice.cli import parser_for
from sluice.commands import COMMANDS
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.app import create_app
from sluice.gateway.http.openapi.docs_page import render
from sluice.gateway.http.openapi.reference import reference
from tests.support.processes.commands import run_here
from tests.test_language import _COMPILED, ROOT, USUAL, files

STATIC = ROOT / "gateway" / "dashboard" / "static"
#: Names of the contract and usual phrases, each with the reason why it is allowed.
ALLOWED = {
    r"`[^`\n]*`": "code",
    r"\bletter_id\b": "the path parameter of dead letters",
    r"use letters, digits": "characters of a name",
}


def faults(text: str) -> list[str]:
    """Banned words in a text without code."""
    for pattern in ALLOWED:
        text = re.sub(pattern, " ", text)
    text = USUAL.sub(" ", text)
    return [
        f"{match[0]!r} in {text[max(0, match.start() - 60) : match.end() + 40]!r}"
        for banned, _ in _COMPILED
        for match in banned.finditer(text)
    ]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(GatewaySettings.model_construct()).openapi()


#: Members of the document that are prose; titles are derived from names of the contract.
_PROSE = ("summary", "description")


def prose(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name in _PROSE and isinstance(value, str):
                yield value
            else:
                yield from prose(value)
    elif isinstance(node, list):
        for value in node:
            yield from prose(value)


def test_openapi_document(document: dict[str, Any]) -> None:
    texts = list(prose(document))
    assert len(texts) > 500
    assert [fault for text in texts for fault in faults(text)] == []


class _Text(HTMLParser):
    """The text of a page without code."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._code = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._code += tag in ("code", "pre", "style")
        self.texts += [value or "" for name, value in attrs if name in ("title", "alt")]

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("code", "pre", "style")

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.texts.append(data)


def test_documentation_pages(document: dict[str, Any]) -> None:
    page = "\n".join(text for text in _Text(render(document)).texts)
    assert "Submit a job" in page
    assert faults(_without_members(page)) == []
    assert faults(_without_members(re.sub(r"```.*?```", " ", reference(), flags=re.DOTALL))) == []


def _without_members(text: str) -> str:
    """Leaves out lists of members, such as `status, box, queue`."""
    return re.sub(r"\w+(?:, \w+){5,}", " ", text)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"install"}))
def test_help_of_commands(name: str) -> None:
    shown = [parser.format_help() for parser in parsers(parser_for(name))]
    assert [fault for text in shown for fault in faults(text)] == []


def test_help_of_the_command_line_and_the_installer(capsys: pytest.CaptureFixture[str]) -> None:
    assert faults(run_here("--help").out) == []
    for words in (["--help"], ["install", "--help"], ["uninstall", "--help"], ["restore", "-h"]):
        with pytest.raises(SystemExit):
            installer.parse(words)
    shown = capsys.readouterr().out
    assert "Install Sluice on this host" in shown
    assert "examples:" in shown
    assert faults(shown) == []


#: Calls whose string arguments users see.
_SHOWN = re.compile(
    r"Problem|WorkflowProblem|\w*_problem|invalid_\w+|store_unavailable|\w*Error|\w*Refused"
    r"|InstallError|Unsuitable|SettingsError|fail|step|say|info|warning|error|print"
)


def strings(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


@pytest.mark.parametrize("area", ["common", "gateway", "worker", "ops", "deploy", "sluice"])
def test_messages_of_errors_and_of_the_installer(area: str) -> None:
    """Also short ones, and parts of formatted ones, which have no space."""
    found = []
    for path in files(area):
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if _SHOWN.fullmatch(called):
                    texts = [each for part in node.args for each in strings(part)]
                    prose = [text for text in texts if re.search(r"[a-z] |^[A-Z][a-z]+$", text)]
                    found += [f"{path.name}: {fault}" for text in prose for fault in faults(text)]
    assert found == []


def test_labels_and_texts_of_the_dashboard() -> None:
    """String literals with a space or a capital: single words in lower case are identifiers."""
    found = []
    for path in sorted(STATIC.rglob("*.js")):
        if "vendor" not in path.parts:
            for match in re.finditer(r'"([^"\n]*)"|`([^`\n]*)`|\'([^\'\n]*)\'', path.read_text()):
                text = match[1] or match[2] or match[3] or ""
                if re.search(r"\w \w|^[A-Z][a-z]", text) and not re.match(r"box\b|error box", text):
                    found += [f"{path.name}: {fault}" for fault in faults(text)]
    assert found == []
    assert faults("\n".join(_Text((STATIC / "index.html").read_text()).texts)) == []


#: Earlier labels of the dashboard that are ordinary words elsewhere.
OLD_LABELS = (
    *("House", "Engine", "Trail", "Doctor", "Forgotten", "Took in all", "Put aside", "Letter"),
    *("Given up", "Read again", "Search on", "None here", "Thoughts", "Good for days", "Made up"),
    *("Tried as often as allowed", "Look", "Have a look", "Room", "End it", "System"),
)
LABELS = ("Admin", "Audit log", "Expires", "Total time", "Dead-lettered", "Refresh", "Health")


def test_dashboard_has_the_current_labels() -> None:
    source = "\n".join(
        path.read_text() for path in STATIC.rglob("*.js") if "vendor" not in path.parts
    )
    literals = {(a or b).strip() for a, b in re.findall(r'"([^"\n]*)"|`([^`\n]*)`', source)}
    assert set(LABELS) <= literals
    assert {text.lower() for text in OLD_LABELS} & {text.lower() for text in literals} <= {
        "trail",  # a part of a path
        "doctor",  # the name of a page's module
        "system",  # a colour scheme
    }
    assert not re.search(r"\{ \$\{\w+\} keys", source), "one key, not 1 keys"


def test_code_blocks_of_the_documentation() -> None:
    """Their comments and the output that they show."""
    found = []
    for path in (*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "contract.md"):
        for block in re.findall(r"^```.*?^```", path.read_text(), re.DOTALL | re.MULTILINE):
            found += [f"{path.name}: {fault}" for fault in faults(block)]
    assert found == []

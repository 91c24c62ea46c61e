"""docs/quickstart.md works as written: its blocks run in order, and print what the page shows.

The only substitution is the port, `:8080`. `make run` runs without the set-up, from a Makefile
that has only this target.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.processes.gateway import free_port
from tests.support.processes.worker import ROOT, wait_until
from tests.support.servers import missing

pytestmark = pytest.mark.process
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
#: Blocks that would install packages or services.
NOT_RUN = ("make model\n", "sudo deploy/install.sh install")
_BLOCK = re.compile(r"^(?:<!-- file: (\S+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT = ":8080"
_RECIPE = "run: $(RUN_STAMP)\n\t@$(PY) -m sluice up $(ARGS)\n"
_MAKEFILE = "run:\n\t@.venv/bin/python -m sluice up $(ARGS)\n"
#: Stands for any text in an output; alone on a line for any lines.
_ANY = "…"
TIMEOUT_S = 60.0


class Block(NamedTuple):
    file: str
    kind: str
    text: str

    @property
    def is_run(self) -> bool:
        return not self.text.startswith(NOT_RUN)

    @property
    def starts_sluice(self) -> bool:
        return "make run" in self.text


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(text)]


def pattern(expected: str) -> re.Pattern[str]:
    """Matches an output. The number of spaces between words is not compared."""
    lines = [
        r"(?:.*\n)*?" if line == _ANY else ".+?".join(map(re.escape, line.split(_ANY))) + r"\n"
        for line in _squeezed(expected).splitlines()
    ]
    return re.compile("".join(lines))


def _squeezed(output: str) -> str:
    """Without spaces at the ends of lines and empty lines at the end."""
    lines = [re.sub(r"[ \t]+", " ", line).rstrip() for line in output.splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


class Terminal:
    """A shell that reads one block after the other, so that variables are kept."""

    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        self._directory = directory
        self._shell = subprocess.Popen(
            ["bash"], cwd=directory, env=env, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, text: str) -> str:
        """The output of a block, which must succeed."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        (self._directory / "block.sh").write_text(text)
        self._shell.stdin.write(". ./block.sh </dev/null; printf '\\nEND %d\\n' $?\n")
        self._shell.stdin.flush()
        overdue = threading.Timer(TIMEOUT_S, self._shell.kill)
        overdue.start()
        lines: list[str] = []
        for line in self._shell.stdout:
            if line.startswith("END "):
                break
            lines.append(line)
        overdue.cancel()
        output = "".join(lines)
        assert line == "END 0\n", f"{text}\n---\n{output}"
        return output

    def close(self) -> None:
        self._shell.kill()
        self._shell.communicate()


class Reader:
    """A reader of the page, with a terminal for Sluice and another one for the other commands."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._port = free_port()
        self._sluice: subprocess.Popen[bytes] | None = None
        self._log = directory / "sluice.log"
        (directory / ".venv").symlink_to(sys.prefix)
        (directory / "Makefile").write_text(_MAKEFILE)
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "PYTHONPATH": str(ROOT),
            "PORT": str(self._port),
            "SLUICE_DATA_DIR": str(directory / "data"),
        }
        self._terminal = Terminal(directory, self._env)

    def follow(self, page: list[Block]) -> None:
        output = ""
        for block in page:
            text = block.text.replace(_PORT, f":{self._port}")
            if block.kind == "text":
                self._compare(text, output)
            elif block.file:
                (self.directory / block.file).write_text(text)
            elif not block.is_run:
                continue
            elif block.starts_sluice:
                output = self._start(text)
            else:
                output = self._terminal.run(text)

    def _compare(self, expected: str, output: str) -> None:
        assert pattern(expected).fullmatch(_squeezed(output)), f"{expected}\n---\n{output}"

    def _start(self, command: str) -> str:
        self.stop()
        with self._log.open("wb") as log:
            self._sluice = subprocess.Popen(
                ["bash", "-c", command], cwd=self.directory, env=self._env, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        wait_until(lambda: self._has_ended() or "Stop: Ctrl-C" in self._log.read_text(), TIMEOUT_S)
        assert not self._has_ended(), self._log.read_text()
        return self._log.read_text()

    def _has_ended(self) -> bool:
        return self._sluice is not None and self._sluice.poll() is not None

    def stop(self) -> None:
        """Ctrl-C: the signal goes to all processes of the terminal."""
        if self._sluice is not None:
            os.killpg(self._sluice.pid, signal.SIGINT)
            self._sluice.wait(TIMEOUT_S)
            assert "stopping" in self._log.read_text()
            self._sluice = None

    def close(self) -> None:
        self._terminal.close()
        self.stop()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    for command in ("bash", "curl", "make"):
        if shutil.which(command) is None:
            missing(f"{command} is not installed")
    reader = Reader(tmp_path)
    yield reader
    reader.close()


def test_every_block_is_run_or_compared() -> None:
    page = blocks(PAGE)
    assert PAGE.count("```") == 2 * len(page)
    assert len([block for block in page if not block.is_run]) == len(NOT_RUN)
    assert [block.file for block in page if block.kind == "python"] == ["hello.py", "shouting.py"]
    assert {block.kind for block in page if not block.file} == {"sh", "text"}
    assert sum(block.starts_sluice for block in page) == 2
    before = {page[at - 1].kind for at, block in enumerate(page) if block.kind == "text"}
    assert before == {"sh"}, "an output follows its command"
    assert _RECIPE in (ROOT / "Makefile").read_text()


def test_outputs_are_compared() -> None:
    assert pattern('{"id":"…"}').fullmatch('{"id":"6f1c"}\n')
    assert pattern("A  B\n…\nend").fullmatch("A B\n1\n2\nend\n")
    assert not pattern('{"id":"…"}').fullmatch('{"id":"6f1c"} more\n')
    assert not pattern('{"id":"…"}').fullmatch('{"id":""}\n')
    assert not pattern("a … c").fullmatch("a b\nb c\n"), "only within a line"
    assert not pattern("done").fullmatch("error\n")


def test_first_steps_of_the_quickstart(reader: Reader) -> None:
    first, _, _ = PAGE.partition("## 3. ")
    reader.follow(blocks(first))


@pytest.mark.slow("starts Sluice twice")
def test_the_whole_quickstart(reader: Reader) -> None:
    reader.follow(blocks(PAGE))

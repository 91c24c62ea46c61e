"""Common behaviour of all commands: help, examples, start-up time, exit codes and errors."""

from __future__ import annotations

import argparse
import json
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cli import parser_for
from sluice.commands import COMMANDS
from sluice.commands.local import install
from sluice.errors import ExitCode
from tests.support.processes.commands import SLUICE, run, run_here
from tests.support.processes.gateway import environment

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "cli.md").read_text()
#: Maximum CPU seconds of the quickest of several starts, with the Python interpreter.
QUICK_S = 0.15
STARTS = 7


def cpu_s(*words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run((*SLUICE, *words), env=environment(), capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("words", [("version",), ("--help",), ("get", "--help"), ("top", "-h")])
def test_start_up_is_quick(words: tuple[str, ...]) -> None:
    assert any(cpu_s(*words) < QUICK_S for _ in range(STARTS))


def test_only_the_requested_command_is_imported() -> None:
    code = (
        "import sys; from sluice.cli import run\n"
        "try: run(['get', '--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith(('sluice.', 'http', 'ops', 'common'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60
    )
    loaded = set(re.findall(r"'([\w.]+)'", done.stdout.splitlines()[-1]))
    assert "sluice.commands.jobs.get" in loaded
    assert not [name for name in loaded if name.startswith(("ops", "common", "http", "httpx2"))]
    assert {name for name in loaded if name.startswith("sluice.commands.")} == {
        "sluice.commands.jobs",
        "sluice.commands.jobs.get",
        "sluice.commands.arguments",
    }


def all_parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parsers of all commands and their actions, by name."""
    for name in COMMANDS:
        if name != "install":  # its help is that of the installer
            parser = parser_for(name)
            yield name, parser
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    yield from ((f"{name} {word}", each) for word, each in action.choices.items())


def test_help_has_a_description_and_valid_examples() -> None:
    for name, parser in all_parsers():
        assert re.fullmatch(r"[A-Z].*\.", parser.description or "", re.DOTALL), name
        heading, *examples = (parser.epilog or "").splitlines() or [""]
        assert heading == "Examples:", name
        assert examples, name
        assert "Examples:\n" in parser.format_help()
        for example in examples:
            line = re.fullmatch(r"  (?:.* \| |sudo |\w+=\w+ )?sluice (.*?)(?: >>? .*)?", example)
            assert line, example
            if "$(" not in example:
                command, *words = shlex.split(line[1])
                assert callable(parser_for(command).parse_args(words).run), example


def test_help_lists_every_command() -> None:
    shown = run("--help")
    assert shown.code == 0
    assert shown.err == ""
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.purpose)}$", shown.out, re.MULTILINE)
    assert run_here("help").out == shown.out
    assert run_here("help", "get").out == run_here("get", "--help").out


def test_misspelt_command_gets_a_suggestion() -> None:
    ran = run_here("wtach", "x")
    assert ran.code == ExitCode.USAGE
    assert "did you mean `sluice watch`" in ran.err
    assert "\x1b" not in run_here("\x1b[31m").err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("queue", "puase"), "did you mean pause?"),
        (("queue", "required"), "invalid choice: 'required'"),
        (("submit", "chatt", "x"), "did you mean chat?"),
        (("submit", "chat", "x", "--strem"), "did you mean --stream?"),
        (("queue", "ls", "--quite"), "did you mean --quiet?"),
        (("ls", "--status", "failed"), "did you mean error?"),
        (("workflow", "list"), "did you mean ls?"),
        (("ps",), "did you mean `sluice ls`?"),
        (("logs",), "did you mean `sluice events`?"),
    ],
)
def test_mistyped_arguments_get_a_suggestion(words: tuple[str, ...], hint: str) -> None:
    ran = run(*words)
    assert ran.code == ExitCode.USAGE
    assert hint in ran.err


def test_words_without_a_similar_one_get_no_suggestion() -> None:
    for words in (("queue", "xyzzy"), ("ls", "--xyzzy"), ("ls", "xyzzy")):
        ran = run(*words)
        assert ran.code == ExitCode.USAGE
        assert "did you mean" not in ran.err
    assert "\x1b" not in run("ls", "--\x1b[31m").err


def test_a_group_without_action_prints_its_help() -> None:
    ran = run("queue")
    assert ran.code == ExitCode.USAGE
    assert ran.out == ""
    assert "pause a queue" in ran.err
    assert "Examples:" in ran.err
    assert run_here().err.startswith(run_here("--help").out)


def test_every_command_with_json_output_accepts_the_short_form() -> None:
    """`--json` is `-o json`, or `-o jsonl` where there is no single document."""
    for name, parser in all_parsers():
        formats = next((list(a.choices or ()) for a in parser._actions if a.dest == "output"), [])
        if formats:
            assert "--json" in parser._option_string_actions, name
            expected = "json" if "json" in formats else "jsonl"
            assert parser._option_string_actions["--json"].const == expected, name


def test_common_options_may_precede_the_command() -> None:
    for words in (("--json", "version"), ("-o", "json", "version"), ("--output=json", "version")):
        assert json.loads(run_here(*words).out) == json.loads(run_here("version", "--json").out)
    ran = run("--url", "nowhere", "queue", "ls")
    assert (ran.code, "'nowhere' is not a gateway URL" in ran.err) == (ExitCode.MISCONFIGURED, True)
    assert run("--url").code == ExitCode.USAGE


def test_version() -> None:
    assert re.fullmatch(r"sluice \d+\.\d+\.\d+\n", run_here("version").out)
    assert run_here("--version").out == run_here("version").out
    assert set(json.loads(run_here("version", "-o", "json").out)) == {"version"}


def test_every_exit_code_is_documented() -> None:
    own, _processes = DOCUMENT.split("The gateway and the worker")
    table = dict(re.findall(r"^\| (\d+) \| (.+?) \|", own, re.MULTILINE))
    assert {int(code) for code in table} == {code.value for code in ExitCode}


def test_every_command_is_documented() -> None:
    for name in COMMANDS:
        assert re.search(rf"`sluice {name}\b", DOCUMENT), name


def test_full_disk_is_reported(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            (*SLUICE, "completion", "bash"), env=environment(), stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == ExitCode.IO_ERROR
    assert b"Traceback" not in done.stderr
    assert b"No space left" in done.stderr


def test_closed_stdout_is_not_an_error() -> None:
    line = f"{sys.executable} -m sluice version >&-"
    done = subprocess.run(["sh", "-c", line], env=environment(), capture_output=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == b""


def test_install_runs_the_installer_of_the_checkout(tmp_path: Path) -> None:
    assert install.SCRIPT == ROOT / "deploy" / "install.sh"
    assert install.SCRIPT.is_file()
    script = tmp_path / "install.sh"
    script.write_text('echo "$@"; exit 69\n')
    code = (
        "import sys; from pathlib import Path; from sluice import cli\n"
        "from sluice.commands.local import install\n"
        f"install.SCRIPT = Path({str(script)!r})\n"
        "sys.exit(cli.run(sys.argv[1:]))"
    )

    def run_install(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", code, "install", *words],
            env=environment(), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stdout

    assert run_install() == (69, "install\n")
    assert run_install("--dry-run") == (69, "install --dry-run\n")
    assert run_install("--help") == (69, "--help\n")
    assert run_install("upgrade", "--yes") == (69, "upgrade --yes\n")
    script.unlink()
    assert run_install()[0] == ExitCode.USAGE


def documented_commands() -> list[tuple[str, str]]:
    """Every `sluice …` command in the code blocks of the documentation."""
    found = []
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in re.findall(r"^```\w*\n(.*?)^```", document.read_text(), re.DOTALL | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                match = re.match(r"(?:\$ |sudo |\w+=\$\()?sluice ([^=#;&|>)][^#;&|>)]*)", line)
                if match and "[" not in match[1]:  # a synopsis is not a command
                    found.append((document.name, match[1].strip()))
    return found


def test_commands_in_the_docs_are_valid() -> None:
    shown = documented_commands()
    assert len(shown) > 20
    for document, line in shown:
        name, *words = shlex.split(line)
        if name != "install":
            arguments = parser_for(name).parse_args(words)
            assert callable(arguments.run), (document, line)

"""Completion as a shell asks for it."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from client.commands import COMMANDS
from client.exits import Exit
from tests.backends import missing
from tests.cli.rig import run


@cache
def script(shell: str) -> str:
    ran = run("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def completed(tmp_path: Path, *words: str) -> set[str]:
    """What bash would offer for the last word."""
    if shutil.which("bash") is None:
        missing("bash is not installed")
    file = tmp_path / "sluice.bash"
    file.write_text(script("bash"))
    quoted = " ".join(f"'{word}'" for word in ("sluice", *words))
    asked = (
        f"set -u; . {file}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _sluice; "
        'printf "%s\\n" "${COMPREPLY[@]-}"'
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_commands_actions_options_and_their_choices(tmp_path: Path) -> None:
    assert completed(tmp_path, "") == set(COMMANDS)
    assert completed(tmp_path, "wor") == {"worker", "workflow"}
    assert {"ls", "pause", "resume"} <= completed(tmp_path, "queue", "")
    assert completed(tmp_path, "queue", "pause", "--w") == {"--why"}
    assert completed(tmp_path, "submit", "c") == {"chat", "code"}
    assert completed(tmp_path, "ls", "--status", "") == {
        "queued", "running", "done", "error", "canceled",
    }  # fmt: skip
    assert completed(tmp_path, "ls", "--task", "chat", "--st") == {"--status"}
    assert completed(tmp_path, "get", "-o", "j") == {"json", "jsonl"}
    assert "--redis" in completed(tmp_path, "key", "--re")
    assert "create" in completed(tmp_path, "key", "cr")
    # What may be any file is left to the shell.
    assert completed(tmp_path, "submit", "chat", "-f", "x") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_own_and_checks_it(shell: str, tmp_path: Path) -> None:
    text = script(shell)
    for name in COMMANDS:
        assert name in text
    assert "completion of sluice" in text.lower()
    if shutil.which(shell) is None:
        return  # its syntax is checked where it is installed
    file = tmp_path / "script"
    file.write_text(text)
    done = subprocess.run([shell, "-n", str(file)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_shell() -> None:
    assert run("completion", "cmd").code == Exit.USAGE

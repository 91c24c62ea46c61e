"""Commands for this machine: settings, completion, and the worker of `sluice up`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from common.settings.gateway import GatewaySettings
from common.settings.worker import WorkerSettings
from sluice.commands import COMMANDS
from sluice.commands.local.up import MODEL_FILE, WorkerChoice, WorkerKind
from sluice.errors import ExitCode
from tests.sluice.commands.processes import run
from tests.support.backends import missing


def explained(*words: str, **settings: str) -> dict[tuple[str, str], dict[str, str]]:
    ran = run("config", "explain", "-o", "json", *words, **settings)
    assert ran.code == 0, ran
    return {(each["process"], each["name"]): each for each in json.loads(ran.out)}


def test_every_setting_of_both_processes() -> None:
    found = explained()
    assert {name for process, name in found if process == "gateway"} == {
        name.upper() for name in GatewaySettings.model_fields
    }
    assert {name for process, name in found if process == "worker"} == {
        name.upper() for name in WorkerSettings.model_fields
    }
    assert found["gateway", "PORT"]["value"] == "8080"
    assert found["gateway", "PORT"]["origin"] == "default"
    assert found["gateway", "REDIS_URL"]["value"] == "unset"


def test_where_a_value_comes_from(tmp_path: Path) -> None:
    (tmp_path / "redis_url").write_text("unix:///run/redis.sock\n")
    found = explained(PORT="9000", CREDENTIALS_DIRECTORY=str(tmp_path), MAX_INFLIGHT="")
    assert found["gateway", "PORT"]["origin"] == "environment"
    assert found["gateway", "PORT"]["default"] == "8080"
    assert found["worker", "REDIS_URL"]["origin"] == "credential"
    assert found["worker", "MAX_INFLIGHT"]["origin"] == "default"
    assert set(explained("--changed", PORT="9000")) == {("gateway", "PORT")}


def test_no_secret_is_shown() -> None:
    ran = run(
        "config",
        "explain",
        MODEL_API_KEY="hunter2",
        REDIS_URL="redis://me:hunter2@localhost:6379",
    )
    assert ran.code == 0
    assert "hunter2" not in ran.out
    assert "redis://me:***@localhost" in ran.out


def test_one_by_name_with_its_meaning() -> None:
    ran = run("config", "explain", "port", PORT="9000")
    first, default, meaning = ran.out.splitlines()
    assert "9000" in first
    assert "[environment; gateway]" in first
    assert "default: 8080" in default
    assert "Port to listen on" in meaning
    assert run("config", "explain", "PORT", "-q").out == "8080\n"
    slip = run("config", "explain", "MAX_INFLIHGT")
    assert slip.code == ExitCode.USAGE
    assert "perhaps MAX_INFLIGHT" in slip.err


def test_check() -> None:
    assert run("config", "check").code == ExitCode.OK
    ran = run("config", "check", BLOCK_MS="0")
    assert (ran.code, ran.out) == (ExitCode.FAILED, "")
    assert "worker: BLOCK_MS" in ran.err
    told = json.loads(run("config", "check", "-o", "json", BLOCK_MS="0").out)
    assert told["ok"] is False
    assert set(told["faults"]) == {"worker"}
    assert run("config", "check", "--process", "gateway", BLOCK_MS="0").code == ExitCode.OK


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
    assert run("completion", "cmd").code == ExitCode.USAGE


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the announcement; nothing is announced yet."""
    monkeypatch.setenv("SLUICE_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("MODEL_URL", raising=False)
    return tmp_path / MODEL_FILE


def announce(model_file: Path) -> int:
    """Announce a model whose process has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    model_file.write_text(
        json.dumps({"model": "small", "url": "http://127.0.0.1:9", "pid": ended.pid})
    )
    return ended.pid


def test_a_crashed_model_is_waited_for_and_reported_once(model_file: Path) -> None:
    choice = WorkerChoice("auto")
    assert choice.initial() is WorkerKind.ECHO
    pid = announce(model_file)
    assert choice.current() is WorkerKind.REAL
    assert list(choice.warnings()) == [
        f"small is gone (process {pid}); jobs wait for it: make model"
    ]
    assert choice.current() is WorkerKind.REAL
    assert list(choice.warnings()) == []


def test_a_model_that_exits_normally_between_two_polls_is_not_reported(model_file: Path) -> None:
    choice = WorkerChoice("auto")
    choice.initial()
    announce(model_file)
    assert choice.current() is WorkerKind.REAL
    model_file.unlink()
    assert list(choice.warnings()) == []
    assert choice.current() is WorkerKind.ECHO

"""Commands for the local machine: config, completion, and the worker choice of `sluice up`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from sluice.commands import COMMANDS
from sluice.commands.local.up import MODEL_FILE, WorkerChoice, WorkerKind
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.worker import WorkerSettings
from sluice.errors import ExitCode
from tests.support.processes.commands import run_here as run
from tests.support.servers import missing


def explain(*words: str, **settings: str) -> dict[tuple[str, str], dict[str, str]]:
    ran = run("config", "explain", "-o", "json", *words, **settings)
    assert ran.code == 0, ran
    return {(each["process"], each["name"]): each for each in json.loads(ran.out)}


def test_explain_lists_every_setting() -> None:
    found = explain()
    assert {name for process, name in found if process == "gateway"} == {
        name.upper() for name in GatewaySettings.model_fields
    }
    assert {name for process, name in found if process == "worker"} == {
        name.upper() for name in WorkerSettings.model_fields
    }
    assert found["gateway", "PORT"]["value"] == "8080"
    assert found["gateway", "PORT"]["origin"] == "default"
    assert found["gateway", "REDIS_URL"]["value"] == "unset"


def test_explain_shows_the_origin(tmp_path: Path) -> None:
    (tmp_path / "redis_url").write_text("unix:///run/redis.sock\n")
    found = explain(PORT="9000", CREDENTIALS_DIRECTORY=str(tmp_path), MAX_INFLIGHT="")
    assert found["gateway", "PORT"]["origin"] == "environment"
    assert found["gateway", "PORT"]["default"] == "8080"
    assert found["worker", "REDIS_URL"]["origin"] == "credential"
    assert found["worker", "MAX_INFLIGHT"]["origin"] == "default"
    assert set(explain("--changed", PORT="9000")) == {("gateway", "PORT")}


def test_secrets_are_masked() -> None:
    ran = run(
        "config", "explain", MODEL_API_KEY="hunter2", REDIS_URL="redis://me:hunter2@localhost:6379"
    )
    assert ran.code == 0
    assert "hunter2" not in ran.out
    assert "redis://me:***@localhost" in ran.out


def test_explain_one_setting_with_description() -> None:
    ran = run("config", "explain", "port", PORT="9000")
    first, default, meaning = ran.out.splitlines()
    assert "9000" in first
    assert "[environment; gateway]" in first
    assert "default: 8080" in default
    assert "Port to listen on" in meaning
    assert run("config", "explain", "PORT", "-q").out == "8080\n"
    misspelt = run("config", "explain", "MAX_INFLIHGT")
    assert misspelt.code == ExitCode.USAGE
    assert "did you mean MAX_INFLIGHT?" in misspelt.err


def test_config_check() -> None:
    assert run("config", "check").code == ExitCode.OK
    ran = run("config", "check", BLOCK_MS="0")
    assert (ran.code, ran.out) == (ExitCode.FAILED, "")
    assert "worker: BLOCK_MS" in ran.err
    as_json = json.loads(run("config", "check", "-o", "json", BLOCK_MS="0").out)
    assert as_json["ok"] is False
    assert set(as_json["faults"]) == {"worker"}
    assert run("config", "check", "--process", "gateway", BLOCK_MS="0").code == ExitCode.OK


@cache
def script(shell: str) -> str:
    ran = run("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def complete(tmp_path: Path, *words: str) -> set[str]:
    """The completions that bash offers for the last word."""
    if shutil.which("bash") is None:
        missing("bash is not installed")
    file = tmp_path / "sluice.bash"
    file.write_text(script("bash"))
    quoted = " ".join(f"'{word}'" for word in ("sluice", *words))
    program = (
        f"set -u; . {file}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _sluice; "
        'printf "%s\\n" "${COMPREPLY[@]-}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_choices(tmp_path: Path) -> None:
    assert complete(tmp_path, "") == set(COMMANDS)
    assert complete(tmp_path, "wor") == {"worker", "workflow"}
    assert {"ls", "pause", "resume"} <= complete(tmp_path, "queue", "")
    assert complete(tmp_path, "queue", "pause", "--w") == {"--why"}
    assert complete(tmp_path, "submit", "c") == {"chat", "code"}
    assert complete(tmp_path, "ls", "--status", "") == {
        "queued", "running", "done", "error", "canceled",
    }  # fmt: skip
    assert complete(tmp_path, "ls", "--task", "chat", "--st") == {"--status"}
    assert complete(tmp_path, "get", "-o", "j") == {"json", "jsonl"}
    assert "--redis" in complete(tmp_path, "key", "--re")
    assert "create" in complete(tmp_path, "key", "cr")
    # File names are completed by the shell.
    assert complete(tmp_path, "submit", "chat", "-f", "x") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_valid(shell: str, tmp_path: Path) -> None:
    text = script(shell)
    for name in COMMANDS:
        assert name in text
    assert "completion of sluice" in text.lower()
    if shutil.which(shell) is None:
        return  # the syntax is checked only if the shell is installed
    file = tmp_path / "script"
    file.write_text(text)
    done = subprocess.run([shell, "-n", str(file)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_unknown_shell_is_refused() -> None:
    assert run("completion", "cmd").code == ExitCode.USAGE


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the announcement file, which does not exist yet."""
    monkeypatch.setenv("SLUICE_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("MODEL_URL", raising=False)
    return tmp_path / MODEL_FILE


def announce(model_file: Path) -> int:
    """Announce a model whose process has exited."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    model_file.write_text(
        json.dumps({"model": "small", "url": "http://127.0.0.1:9", "pid": ended.pid})
    )
    return ended.pid


def test_crashed_model_is_reported_once(model_file: Path) -> None:
    choice = WorkerChoice("auto")
    assert choice.initial() is WorkerKind.ECHO
    pid = announce(model_file)
    assert choice.current() is WorkerKind.REAL
    assert list(choice.warnings()) == [
        f"model small: the server (process {pid}) is gone; jobs wait for it; restart it with "
        "`make model` or `sluice model serve`"
    ]
    assert choice.current() is WorkerKind.REAL
    assert list(choice.warnings()) == []


def test_stale_announcement_is_ignored(model_file: Path) -> None:
    """For example after a power cut."""
    announce(model_file)
    assert WorkerChoice("auto").initial() is WorkerKind.ECHO


def test_normal_model_exit_is_not_reported(model_file: Path) -> None:
    choice = WorkerChoice("auto")
    choice.initial()
    announce(model_file)
    assert choice.current() is WorkerKind.REAL
    model_file.unlink()
    assert list(choice.warnings()) == []
    assert choice.current() is WorkerKind.ECHO


@pytest.mark.parametrize(
    ("mode", "variables", "task", "line"),
    [
        (
            "auto",
            {},
            "chat",
            "The echo worker answers all jobs. For a real model, run `make model`",
        ),
        ("echo", {"MODEL_URL": "http://model:1"}, "chat", "The echo worker answers all jobs."),
        ("auto", {"MODEL_URL": "http://model:1"}, "chat", "answered by http://model:1 now"),
        ("real", {"MODEL_URL": "http://model:1"}, "chat", "answered by http://model:1 now"),
        ("real", {}, "tool", "chat, plan and code need a model, and none is served"),
        ("real", {"WORKER_HANDLERS": "mine"}, "rag", "`make model` in another terminal"),
    ],
)
def test_example_and_description_fit_the_worker(
    model_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    variables: dict[str, str],
    task: str,
    line: str,
) -> None:
    monkeypatch.delenv("WORKER_HANDLERS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    choice = WorkerChoice(mode)
    kind = choice.initial()
    assert json.loads(choice.example(kind))["task"] == task
    assert line in choice.describe(kind)


def test_the_real_worker_with_an_announced_model(model_file: Path) -> None:
    choice = WorkerChoice("real")
    choice.initial()
    announce(model_file)
    kind = choice.current()
    assert json.loads(choice.example(kind))["task"] == "chat"
    assert choice.describe(kind) == "chat, plan and code are answered by small now"

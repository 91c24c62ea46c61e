"""The sets of packages: consistent lock files, and programs that start with their set only."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from sluice.errors import ExitCode
from tests.support.processes.gateway import ROOT, environment, free_port

RUN, DEV = "requirements-run.lock", "requirements.lock"
SERVICES = "deploy/requirements.lock"
LOCKS = (RUN, DEV, SERVICES)
#: Packages of tests and of optional features.
NOT_FOR_RUN = {
    *("boto3", "bullmq", "fakeredis", "hypothesis", "mcp", "moto", "mypy", "numpy", "openai"),
    *("opencv-python-headless", "pillow", "playwright", "pypdf", "pytest", "ruff", "schemathesis"),
}
SERVER = "server"
#: Puts None into sys.modules: the module cannot be found or imported, as if it were not installed.
SITE = "import os, sys; sys.modules.update(dict.fromkeys(os.environ['ABSENT'].split()))\n"


def pins(lock: str) -> dict[str, str]:
    """Version by name and condition."""
    found = re.findall(r"^([\w.-]+)==(\S+)(?: ; (.*?))? \\$", (ROOT / lock).read_text(), re.M)
    return {f"{name} ; {condition}": version for name, version, condition in found}


def names(lock: str) -> set[str]:
    return {pin.partition(" ; ")[0] for pin in pins(lock)}


def of_extra(extra: str) -> set[str]:
    """Names of the packages that an extra adds."""
    text = (ROOT / "pyproject.toml").read_text()
    match = re.search(rf"^{extra} = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert match is not None
    return set(re.findall(r'^    "([\w-]+)', match[1], re.MULTILINE))


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_has_hashes_and_names_no_host(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links|--trusted-host", text)
    found = pins(lock)
    assert len(found) > 20
    assert len(found) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE))
    assert all(
        "--hash=sha256:" in entry for entry in re.split(r"\n(?=[a-z0-9])", text) if entry.strip()
    )


@pytest.mark.parametrize("lock", [RUN, SERVICES])
def test_each_package_has_the_version_of_the_development_set(lock: str) -> None:
    development = (ROOT / DEV).read_text()
    versions = set(re.findall(r"^([\w.-]+==\S+)", development, re.MULTILINE))
    own = set(re.findall(r"^([\w.-]+==\S+)", (ROOT / lock).read_text(), re.MULTILINE))
    assert own <= versions
    assert {pin: version for pin, version in pins(lock).items() if pin in pins(DEV)} == {
        pin: version for pin, version in pins(DEV).items() if pin in pins(lock)
    }


def test_the_run_set_has_the_server_and_no_tools_of_tests() -> None:
    assert of_extra(SERVER) | of_extra("embedded") | of_extra("build") <= names(RUN)
    assert not NOT_FOR_RUN & names(RUN)
    assert names(DEV) >= NOT_FOR_RUN


def test_the_client_needs_only_httpx2() -> None:
    assert of_extra("dependencies") == {"httpx2"}


# -- programs without the other packages --------------------------------------------------------


def modules_of(distributions: set[str]) -> set[str]:
    """Top-level modules of these packages only."""
    wanted = {normal(name) for name in distributions}
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if {normal(owner) for owner in owners} <= wanted
    }


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def run_without(absent: set[str], tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs Python where these modules cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    env = environment(ABSENT=" ".join(absent), PORT=str(free_port()))
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    return subprocess.run(
        [sys.executable, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "module", ["sluice.gateway.main", "worker.echo_worker", "sluice.worker.handlers.builtin"]
)
def test_a_process_starts_with_the_run_set(tmp_path: Path, module: str) -> None:
    absent = modules_of(names(DEV) - names(RUN))
    assert {"numpy", "pytest", "PIL"} <= absent
    done = run_without(absent, tmp_path, "-c", f"import {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["sluice.gateway.main", "worker.echo_worker"])
def test_packages_of_the_real_worker_are_not_needed_earlier(tmp_path: Path, module: str) -> None:
    absent = {"jsonschema", "rapidfuzz", "snowballstemmer"}
    done = run_without(absent, tmp_path, "-c", f"import {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        *("up", "doctor", "doctor --help", "key ls", "config check", "model status"),
        "audit --local",
    ],
)
def test_a_command_that_needs_the_server_names_the_extra(tmp_path: Path, command: str) -> None:
    absent = modules_of(of_extra(SERVER))
    assert {"fastapi", "redis", "pydantic"} <= absent
    done = run_without(absent, tmp_path, "-m", "sluice", *command.split())
    assert done.returncode == ExitCode.UNAVAILABLE == 69, done.stderr
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"sluice: `sluice {command.split()[0]}` needs the package")
    assert line.endswith("pip install 'sluice[server]'")


@pytest.mark.parametrize(
    "command", ["version", "submit --help", "completion bash", "install --help"]
)
def test_other_commands_need_only_the_client(tmp_path: Path, command: str) -> None:
    done = run_without(modules_of(of_extra(SERVER)), tmp_path, "-m", "sluice", *command.split())
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    if command.startswith("completion"):
        assert "doctor" in done.stdout


def test_an_unreachable_gateway_is_reported_without_the_server(tmp_path: Path) -> None:
    done = run_without(modules_of(of_extra(SERVER)), tmp_path, "-m", "sluice", "ls")
    assert done.returncode == ExitCode.UNREACHABLE
    assert "no gateway answers" in done.stderr


def test_both_clients_need_no_server_packages(tmp_path: Path) -> None:
    code = "from sluice import AsyncSluice, Sluice; Sluice(); import httpx2"
    done = run_without(modules_of(of_extra(SERVER)), tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr

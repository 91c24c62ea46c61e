"""The session of the README, with services installed by the installer and started by systemd."""

from __future__ import annotations

import re

import pytest

from tests.system.machine import Machine
from tests.system.sluice import (
    REDIS,
    SERVICES,
    UNITS,
    URL,
    assert_no_warnings,
    curl,
    job,
    post,
    run_job,
)


@pytest.mark.parametrize("unit", UNITS)
def test_units_run_after_a_boot(machine: Machine, unit: str) -> None:
    state = machine.unit(unit, "ActiveState", "UnitFileState", "NRestarts")
    assert (state["ActiveState"], state["UnitFileState"]) == ("active", "enabled")
    assert state.get("NRestarts", "0") == "0"


def test_a_job_is_run_and_streamed(machine: Machine) -> None:
    job_id = post(machine)
    output = curl(machine, f"-N {URL}/v1/jobs/{job_id}/events")
    events = [line.removeprefix("event: ") for line in output.splitlines() if "event: " in line]
    assert events == ["hello", "queued", "running", "message", "done"]
    assert "echo(task=chat): {'text': 'hello'}" in output
    finished = job(machine, job_id)
    assert finished["status"] == "done"
    assert finished["result"]["text"] == "echo(task=chat): {'text': 'hello'}"


@pytest.mark.parametrize("unit", SERVICES)
def test_systemctl_status_shows_what_a_service_does(machine: Machine, unit: str) -> None:
    text = machine.prop(unit, "StatusText")
    assert text
    assert text in machine.run(f"systemctl status {unit}").stdout
    if unit != REDIS:
        assert re.search(r"\d+ \w+ in work|\d+ waiting", text), text


def test_journal_finds_a_job_by_its_id(machine: Machine) -> None:
    job_id = run_job(machine, "find me")
    found = machine.wait_for(
        lambda: machine.run(f"journalctl -o json JOB_ID={job_id}", code=None).stdout,
        10,
        f"lines of {job_id} in the journal",
    )
    assert job_id in found
    assert "find me" not in machine.journal(), "a payload stands in the journal"


def test_the_journal_has_no_warnings_and_no_secrets(machine: Machine) -> None:
    assert_no_warnings(machine, *UNITS)
    passwords = machine.run(
        r"grep -hoP '(?<=:)[^:/@]{16,}(?=@)' /etc/sluice/credentials/*.redis_url"
    ).stdout.split()
    assert passwords
    journal = machine.journal("-b")
    assert not [password for password in passwords if password in journal]

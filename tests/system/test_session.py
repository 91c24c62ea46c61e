"""The session of the README, with services installed by the installer and started by systemd."""

from __future__ import annotations

import re

import pytest

from tests.system.machine import Machine
from tests.system.sluice import GATEWAY, SERVICES, UNITS, URL, WORKER, curl, job, post, wait_until


@pytest.mark.parametrize("unit", UNITS)
def test_units_run_after_a_boot(machine: Machine, unit: str) -> None:
    state = machine.unit(unit, "ActiveState", "UnitFileState", "NRestarts")
    assert (state["ActiveState"], state["UnitFileState"]) == ("active", "enabled")
    assert state.get("NRestarts", "0") == "0"


def test_a_job_is_run_and_streamed(machine: Machine) -> None:
    job_id = post(machine)["job_id"]
    output = curl(machine, f"-N {URL}/v1/jobs/{job_id}/events")
    events = [line.removeprefix("event: ") for line in output.splitlines() if "event: " in line]
    assert events == ["hello", "queued", "running", "message", "done"]
    assert "echo(task=chat): {'text': 'hello'}" in output
    finished = job(machine, job_id)
    assert finished["status"] == "done"
    assert finished["result"]["text"] == "echo(task=chat): {'text': 'hello'}"


@pytest.mark.parametrize("unit", SERVICES)
def test_systemctl_status_shows_what_a_service_does(machine: Machine, unit: str) -> None:
    assert machine.prop(unit, "StatusText")
    assert machine.prop(unit, "StatusText") in machine.run(f"systemctl status {unit}").stdout


def test_status_counts_jobs(machine: Machine) -> None:
    for unit in (GATEWAY, WORKER):
        text = machine.prop(unit, "StatusText")
        assert re.search(r"\d+ \w+ in work|\d+ waiting", text), text


def test_journal_finds_a_job_by_its_id(machine: Machine) -> None:
    job_id = post(machine, "find me")["job_id"]
    wait_until(machine, job_id, "done")
    found = machine.wait_for(
        lambda: machine.run(f"journalctl -o json JOB_ID={job_id}", code=None).stdout,
        10,
        f"lines of {job_id} in the journal",
    )
    assert job_id in found
    assert "find me" not in machine.journal(), "a payload stands in the journal"


def test_the_journal_has_no_warnings(machine: Machine) -> None:
    complaints = machine.journal("-b", "-p", "warning", *(f"-u{unit}" for unit in UNITS))
    assert complaints in ("", "-- No entries --\n")


def test_the_journal_contains_no_secrets(machine: Machine) -> None:
    passwords = machine.run(
        r"grep -hoP '(?<=:)[^:/@]{16,}(?=@)' /etc/sluice/credentials/*.redis_url"
    ).stdout.split()
    assert passwords
    journal = machine.journal("-b")
    assert not [password for password in passwords if password in journal]

"""The programs in docs/client.md run unmodified."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sluice import errors
from tests.sluice.conftest import Site
from tests.support.files.photos import encoded, harness
from tests.support.processes.gateway import ROOT, environment

PAGE = (ROOT / "docs" / "client.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
#: Programs that need the built-in handlers and the workflow of the examples.
FEATURES = [program for program in PROGRAMS if "sluice.rag" in program]
JOBS = [program for program in PROGRAMS if program not in FEATURES]


def run(program: str, site: Site, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(SLUICE_URL=site.url),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_number_of_programs() -> None:
    assert (len(JOBS), len(FEATURES)) == (3, 1)


@pytest.mark.process
@pytest.mark.xdist_group("client-site")
@pytest.mark.parametrize("number", range(3))
def test_job_programs_run(site: Site, tmp_path: Path, number: int) -> None:
    output = run(JOBS[number], site, tmp_path)
    assert ("'words': 0" in output) == (number < 2)
    assert ("wrong {'kind': 'wrong'" in output) == (number == 2)


@pytest.mark.process
@pytest.mark.xdist_group("client-features")
def test_feature_program_runs(feature_site: Site, tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(encoded(harness(), "jpeg"))
    output = run(FEATURES[0], feature_site, tmp_path)
    assert "The office opens at nine." in output
    assert output.splitlines()[-1] == "completed"
    assert (tmp_path / "holiday.webp").read_bytes()[:4] == b"RIFF"
    shutil.rmtree(tmp_path)


def test_every_error_is_documented_with_its_exit_code() -> None:
    rows = re.findall(r"^\| (?:[├└] )?(`.*?) \| .* \| ([\d, ]+) \|$", PAGE, re.MULTILINE)
    codes = {}
    for names, numbers in rows:
        given = [int(number) for number in numbers.split(",")]
        for at, name in enumerate(re.findall(r"`(\w+)`", names)):
            codes[name] = given[min(at, len(given) - 1)]
    for name in errors.__dict__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, errors.SluiceError):
            if name in ("Broken", "InProgress"):  # documented with their base class, or not at all
                continue
            assert codes[name] == kind.exit_code, name

"""The programs in docs/client.md run unmodified."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice import errors
from tests.support.client.site import Site
from tests.support.files.photos import encoded, harness
from tests.support.processes.gateway import ROOT, environment

PAGE = (ROOT / "docs" / "client.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


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


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "output"),
    [
        (0, "'words': 5"),
        (1, "'words': 1"),
        (2, "wrong {'kind': 'wrong'"),
        pytest.param(3, "The office opens at nine.", marks=pytest.mark.slow("runs a workflow")),
    ],
)
def test_documented_programs_run(site: Site, tmp_path: Path, number: int, output: str) -> None:
    assert len(PROGRAMS) == 4
    (tmp_path / "holiday.jpg").write_bytes(encoded(harness(), "jpeg"))
    printed = run(PROGRAMS[number], site, tmp_path)
    assert output in printed
    if number == 3:
        assert printed.splitlines()[-1] == "completed"
        assert (tmp_path / "holiday.webp").read_bytes()[:4] == b"RIFF"


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

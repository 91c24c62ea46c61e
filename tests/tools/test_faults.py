"""The deliberate faults of `make mutants ARGS=--faults`."""

from __future__ import annotations

from pathlib import Path

from tools.mutants.faults import FAULTS, faults_in

ROOT = Path(__file__).parents[2]


def test_every_fault_changes_the_code() -> None:
    faults = faults_in(ROOT)
    assert len(faults) == len(FAULTS) >= 10
    for fault in faults:
        assert fault.apply() != (ROOT / fault.path).read_text()

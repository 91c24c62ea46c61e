"""The committed files of sluice/sync match those generated from sluice/aio."""

from __future__ import annotations

import subprocess
import sys

from tests.support.processes.gateway import ROOT


def test_blocking_client_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "tools/generate_sync_client.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_each_generated_file_names_its_source() -> None:
    paths = sorted((ROOT / "sluice" / "sync").glob("*.py"))
    assert [path.name for path in paths] == [
        path.name for path in sorted((ROOT / "sluice" / "aio").glob("*.py"))
    ]
    for path in paths:
        first = path.read_text().splitlines()[0]
        assert first == f"# Generated from sluice/aio/{path.name}; edit that file."
        assert "async " not in path.read_text()
        assert "await " not in path.read_text()

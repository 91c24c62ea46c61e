"""Wheels for hosts without internet access, and the names of releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.installer.errors import Missing
from deploy.installer.sources import Sources
from deploy.installer.wheelhouse import for_target, platforms

PYTHON = Path("/usr/bin/python3")
LOCK = """\
anyio==4.16.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
async-timeout==5.0.1 ; python_full_version < '3.11.3' \\
    --hash=sha256:cc
starlette==1.7.0 ; python_full_version < '3.11' \\
    --hash=sha256:dd
starlette==1.10.0 ; python_full_version >= '3.11' \\
    --hash=sha256:ee
uvloop==0.23.0 ; sys_platform != 'win32' \\
    --hash=sha256:ff
winloop==1.0 ; sys_platform == 'win32' \\
    --hash=sha256:11
"""


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("3.10", ["anyio==4.16.0", "async-timeout==5.0.1", "starlette==1.7.0", "uvloop==0.23.0"]),
        # Debian 12 has 3.11.2, others a later patch: the packages of either are included.
        ("3.11", ["anyio==4.16.0", "async-timeout==5.0.1", "starlette==1.10.0", "uvloop==0.23.0"]),
        ("3.12", ["anyio==4.16.0", "starlette==1.10.0", "uvloop==0.23.0"]),
    ],
)
def test_markers_are_evaluated_for_the_target(python: str, expected: list[str]) -> None:
    text = for_target(LOCK, "aarch64", python)
    kept = [line for line in text.splitlines() if not line.startswith(" ")]
    assert kept == [f"{name} \\" for name in expected]
    assert text.startswith("anyio==4.16.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n")


def test_the_complete_lock_file_is_parsed() -> None:
    text = for_target(Sources().lock.read_text(), "aarch64", "3.10")
    assert ";" not in text
    assert "fastapi==" in text
    names = [line.split("==")[0] for line in text.splitlines() if not line.startswith(" ")]
    assert len(names) == len(set(names))


def test_tags_from_the_newest_glibc_to_the_oldest() -> None:
    tags = platforms("aarch64")
    assert tags[0] == "manylinux_2_35_aarch64"  # JetPack 6
    assert "manylinux2014_aarch64" in tags


def test_the_release_name_depends_on_the_content(tmp_path: Path) -> None:
    first = Sources().release_name(PYTHON)
    assert first == Sources().release_name(PYTHON)
    assert first.startswith(f"{Sources().version}-")
    wheel = tmp_path / f"sluice-{Sources().version}-py3-none-any.whl"
    wheel.write_text("one")
    one = Sources(wheelhouse=tmp_path).release_name(PYTHON)
    wheel.write_text("two")
    assert len({first, one, Sources(wheelhouse=tmp_path).release_name(PYTHON)}) == 3


def test_a_wheelhouse_without_the_sluice_wheel(tmp_path: Path) -> None:
    with pytest.raises(Missing) as missing:
        Sources(wheelhouse=tmp_path).release_name(PYTHON)
    assert "make wheelhouse" in missing.value.fix

"""Machines that boot a real systemd; skipped with a reason where that cannot be done."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.backends import missing
from tests.system.cache import scratch
from tests.system.machine import CommandFailed, Layers, Machine, booted
from tests.system.rootfs import base_tree, what_is_missing
from tests.system.sluice import PROJECT, TOOLS, WHEELHOUSE, install, put_tools
from tests.system.wheelhouse import copy_project, wheelhouse


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory is a system test."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows what its machine's journal says."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Machine):
                report.sections.append((f"machine {name}", value.troubles()))
    return report


@pytest.fixture(scope="session")
def workplace() -> Iterator[Path]:
    """Where this run's trees lie; gone at its end."""
    reason = what_is_missing()
    if reason is not None:
        missing(reason)
    with scratch() as directory:
        yield directory


@pytest.fixture(scope="session")
def unpacked(workplace: Path) -> Layers:
    """The base tree with the project and its wheels on board, nothing installed."""
    above = workplace / "unpacked"
    project = copy_project(above / PROJECT.lstrip("/"))
    wheelhouse(project, above / WHEELHOUSE.lstrip("/"))
    put_tools(above / TOOLS.lstrip("/"))
    return (above, base_tree())


@pytest.fixture(scope="session")
def installed(unpacked: Layers, workplace: Path) -> Layers:
    """Sluice installed by its own installer, then switched off: test files begin with this."""
    machine = Machine(unpacked, workplace)
    try:
        machine.boot()
        install(machine)
    except CommandFailed as failed:
        raise CommandFailed(f"{failed}\n{machine.troubles()}") from failed
    finally:
        machine.power_off()
    return machine.layers


@pytest.fixture(scope="module")
def machine(installed: Layers, workplace: Path) -> Iterator[Machine]:
    """A machine of this test file's own, with Sluice installed and running since its boot."""
    with booted(installed, workplace) as machine:
        yield machine

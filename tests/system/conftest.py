"""Machines that boot a real systemd; tests are skipped with a reason if that is impossible."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.servers import missing
from tests.system.cache import scratch
from tests.system.listing import Listing, listing
from tests.system.machine import CommandFailed, Layers, Machine, booted
from tests.system.rootfs import base_tree, what_is_missing
from tests.system.sluice import PROJECT, TOOLS, WHEELHOUSE, install, put_tools
from tests.system.wheelhouse import copy_project, wheelhouse


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the machine's journal to the report of a failed test."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Machine):
                report.sections.append((f"machine {name}", value.troubles()))
    return report


@pytest.fixture(scope="session")
def work_directory() -> Iterator[Path]:
    """Directory for the trees of this run; removed at its end."""
    reason = what_is_missing()
    if reason is not None:
        missing(reason)
    with scratch() as directory:
        yield directory


@pytest.fixture(scope="session")
def unpacked(work_directory: Path) -> Layers:
    """The base tree with the project and its wheels; nothing is installed."""
    above = work_directory / "unpacked"
    project = copy_project(above / PROJECT.lstrip("/"))
    wheelhouse(project, above / WHEELHOUSE.lstrip("/"))
    put_tools(above / TOOLS.lstrip("/"))
    return (above, base_tree())


@pytest.fixture(scope="session")
def installed(unpacked: Layers, work_directory: Path) -> Layers:
    """Sluice installed by its installer, then powered off; test files start with this."""
    machine = Machine(unpacked, work_directory)
    try:
        machine.boot()
        install(machine)
    except CommandFailed as failed:
        raise CommandFailed(f"{failed}\n{machine.troubles()}") from failed
    finally:
        machine.power_off()
    return machine.layers


@pytest.fixture(scope="module")
def host(unpacked: Layers, work_directory: Path) -> Iterator[Machine]:
    """A machine for one test file, without Sluice."""
    with booted(unpacked, work_directory) as machine:
        yield machine


@pytest.fixture(scope="module")
def pristine(host: Machine) -> Listing:
    """The state before the installation."""
    return listing(host)


@pytest.fixture(scope="module")
def machine(installed: Layers, work_directory: Path) -> Iterator[Machine]:
    """A machine for one test file, with Sluice installed and running since its boot."""
    with booted(installed, work_directory) as machine:
        yield machine

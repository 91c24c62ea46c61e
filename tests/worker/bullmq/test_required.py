"""The package `bullmq` must be installed in the supported version."""

from __future__ import annotations

import importlib.metadata

import pytest

from common.errors import SettingsError
from common.features.bullmq import package
from common.settings.worker import WorkerSettings
from worker import main
from worker.bullmq import main as process
from worker.bullmq import main as required
from worker.registry import Registry


def test_the_package_of_the_lock_file_is_accepted() -> None:
    required.require_package()


@pytest.fixture(params=["missing", "another", "incomplete"])
def unsupported(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def version(name: str) -> str:
        if request.param == "missing":
            raise importlib.metadata.PackageNotFoundError(name)
        return "3.4.5" if request.param == "another" else "3.4.4"

    monkeypatch.setattr(importlib.metadata, "version", version)
    if request.param == "incomplete":
        monkeypatch.setattr(required, "SCRIPTS", ("moveToMars-3",))
    return str(request.param)


def test_the_error_names_the_setting_and_the_fix(unsupported: str) -> None:
    settings = WorkerSettings(redis_url="redis://127.0.0.1:1", bullmq_queues="q")
    for run in (process.run, lambda settings: main.run_with(Registry(), settings)):
        with pytest.raises(SettingsError, match=r"BULLMQ_QUEUES.*bullmq"):
            run(settings)


def test_a_worker_without_queues_is_an_error() -> None:
    with pytest.raises(SettingsError, match="BULLMQ_QUEUES is not set"):
        process.run(WorkerSettings(redis_url="redis://127.0.0.1:1"))


def test_every_script_has_its_file() -> None:
    for script in required.SCRIPTS:
        keys = int(script.rpartition("-")[2])
        assert f"KEYS[{keys}]" in package.script_source(script)

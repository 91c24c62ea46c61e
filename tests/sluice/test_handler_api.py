"""`sluice.worker`: the API for authors of handlers, tools and workflows."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from sluice import worker
from tests.support.processes.gateway import ROOT

EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


def test_every_name_can_be_imported() -> None:
    assert sorted(worker.__all__) == worker.__all__
    for name in worker.__all__:
        assert getattr(worker, name).__name__ == name
    with pytest.raises(AttributeError, match="Nonsense"):
        worker.Nonsense  # noqa: B018


def test_type_checkers_see_the_runtime_names() -> None:
    tree = ast.parse(Path(str(worker.__file__)).read_text())
    [checked] = [node for node in tree.body if isinstance(node, ast.If)]
    homes = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert homes == worker._MODULES
    assert sorted(homes) == worker.__all__
    for name, module in homes.items():
        assert getattr(import_module(str(module)), name) is getattr(worker, name)


@pytest.mark.parametrize("module", ["sluice", "sluice.worker"])
def test_import_has_no_heavy_dependencies(module: str) -> None:
    heavy = {"worker", "common", "gateway", "ops", "redis", "fastapi", "pydantic", "asyncio"}
    program = f"import sys, {module}\nprint(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_import_only_the_public_api(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.module.split(".")[0] not in ("worker", "common", "gateway", "ops")
            if node.module.split(".")[0] == "sluice":
                assert node.module in ("sluice", "sluice.worker")

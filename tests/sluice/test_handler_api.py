"""`sluice.worker`: the API for authors of handlers, tools and workflows."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

from sluice import worker
from tests.support.processes.gateway import ROOT

EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_import_only_the_public_api(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.module.split(".")[0] not in ("worker", "common", "gateway", "ops")
            if node.module.split(".")[0] == "sluice":
                assert node.module in ("sluice", "sluice.worker")

"""The copy of the documentation that the site is built from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.docs.stage import adapt, stage

ROOT = Path(__file__).resolve().parents[2]


class Loader(yaml.SafeLoader):
    """Ignores the tags of Python objects."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def named(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from named(value)


def test_navigation_names_existing_pages_once() -> None:
    config = yaml.load((ROOT / "tools/docs/mkdocs.yml").read_text(), Loader)
    names = list(named(config["nav"]))
    assert len(set(names)) == len(names)
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_every_page_is_copied_with_linked_files(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    pages = stage(ROOT, target)
    assert {"README.md", "contract.md", "docs/README.md", "docs/quickstart.md"} <= set(pages)
    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")} <= set(pages)
    assert (target / "docs" / "benchmarks.svg").read_bytes().startswith(b"<svg")
    (target / "old.md").touch()
    assert stage(ROOT, target) == pages
    assert not (target / "old.md").exists()


def test_linked_directories_become_pages(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "copy"
    for name in ("docs", "plain", "described"):
        (root / name).mkdir(parents=True)
    (root / "plain" / "x.py").write_text("1\n")
    (root / "plain" / "unlinked").mkdir()
    (root / "described" / "README.md").write_text("# Described\n[back](../docs/a.md#b)\n")
    (root / "docs" / "a.md").write_text(
        "[one](../plain/) [two](../described) [three](../no) [four](https://example.org/x)\n"
        "[five](../../outside.md)\n"
    )
    (tmp_path / "outside.md").touch()
    pages = ["described/README.md", "docs/a.md", "plain/README.md"]
    assert sorted(stage(root, target)) == pages
    assert (
        (target / "docs" / "a.md")
        .read_text()
        .startswith("[one](../plain/README.md) [two](../described/README.md) [three](../no) ")
    )
    assert (target / "plain" / "README.md").read_text() == "# plain\n\n- [x.py](x.py)\n"
    assert (target / "plain" / "x.py").exists()


ADAPTED = [
    ("text\n- a\n- b\n", "text\n\n- a\n- b\n"),
    ("text\n1. a\n2. b\n", "text\n\n1. a\n2. b\n"),
    ("about\n1990. A year\n", "about\n1990. A year\n"),
    ("text\n| a |\n|---|\n| 1 |\n", "text\n\n| a |\n|---|\n| 1 |\n"),
    ("- a\n  more\n- b\n", "- a\n    more\n- b\n"),
    ("- a\n  - b\n    - c\n- d\n", "- a\n    - b\n        - c\n- d\n"),
    ("1. a\n   more\n\n   ```\n   - x\n     y\n   ```\n2. b\n",
     "1. a\n    more\n\n    ```\n    - x\n      y\n    ```\n2. b\n"),
    ("```\ntext\n- a\n  b\n```\n- c\n", "```\ntext\n- a\n  b\n```\n\n- c\n"),
    ("- a\nstill a\n- b\n\nend\n- c\n", "- a\n    still a\n- b\n\nend\n\n- c\n"),
    ("# A\n- a\n", "# A\n\n- a\n"),
]  # fmt: skip


def test_lists_and_tables_are_adapted() -> None:
    for text, adapted in ADAPTED:
        assert adapt(text) == adapted, text

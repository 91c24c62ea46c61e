"""Builds the documentation site in build/site. A warning, such as a broken link, is an error."""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.commands.build import build
from mkdocs.config import load_config

from tools.docs.stage import stage

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
#: Elements that a browser loads with a page.
_EXTERNAL = re.compile(
    r"<(?:script|link|img|source|iframe)\b[^>]*?\b(?:src|href)=\W?(?:https?:)?//"
)


def named(nav: list[Any]) -> Iterator[str]:
    """Paths of the pages in a navigation of mkdocs."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
            continue
        for value in entry.values():
            yield from named(value if isinstance(value, list) else [value])


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    source, site = ROOT / "build" / "docs", ROOT / "build" / "site"
    pages = stage(ROOT, source)
    config = load_config(
        str(HERE / "mkdocs.yml"), docs_dir=str(source), site_dir=str(site), strict=True
    )
    (source / "assets").mkdir(exist_ok=True)
    shutil.copyfile(HERE / "vendor" / "iframe-worker.js", source / "assets" / "iframe-worker.js")
    missing = sorted(set(pages) - set(named(config.nav)))
    if missing:
        config.nav.append({"More": missing})
    build(config)
    external = [page for page in site.rglob("*.html") if _EXTERNAL.search(page.read_text())]
    for page in external:
        print(f"{page.relative_to(ROOT)} loads a file from another host", file=sys.stderr)
    if missing:
        print(f"not in the nav of tools/docs/mkdocs.yml, shown under More: {', '.join(missing)}")
    print(f"{len(pages)} pages: {(site / 'index.html').relative_to(ROOT)}")
    return 1 if external else 0


if __name__ == "__main__":
    sys.exit(main())

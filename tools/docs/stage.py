"""Copies the Markdown files, and the files that they link to, into a directory for the site.

The copies keep their paths, so relative links stay valid. The site generator does not know some of
GitHub's Markdown; the copies are adapted to it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

_FENCE = re.compile(r"(`{3,}|~{3,})")
_ITEM = re.compile(r"(?:[-*+]|\d+[.)]) +")
#: Only these items may follow a paragraph without a blank line.
_FIRST_ITEM = re.compile(r"(?:[-*+]|1[.)]) +")
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
_INDENT = 4


def stage(root: Path, target: Path) -> list[str]:
    """Fill `target` with the pages and the linked files; returns the paths of the pages."""
    shutil.rmtree(target, ignore_errors=True)
    waiting = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md"))]
    pages: list[str] = []
    copied: set[Path] = set()
    while waiting:
        path = waiting.pop(0)
        if path in copied:
            continue
        copied.add(path)
        relative = path.relative_to(root)
        copy = target / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            # A link to a directory shows its README, or a list of its files.
            files = sorted(each for each in path.iterdir() if each.is_file())
            waiting += files
            readme = path / "README.md"
            if readme not in files:
                copy.mkdir(exist_ok=True)
                lines = [f"# {relative}", "", *(f"- [{each.name}]({each.name})" for each in files)]
                (copy / readme.name).write_text("\n".join(lines) + "\n")
                pages.append(str(relative / readme.name))
        elif path.suffix == ".md":
            text = path.read_text()
            waiting += [linked for linked in _linked(path, text) if linked.is_relative_to(root)]
            copy.write_text(adapt(_name_readmes(path, text)))
            pages.append(str(relative))
        else:
            shutil.copyfile(path, copy)
    return pages


def _linked(page: Path, text: str) -> Iterator[Path]:
    """Existing files and directories that the page links to. The generator reports the others."""
    for _, name, _ in _LINK.findall(text):
        linked = (page.parent / name).resolve()
        if linked.exists():
            yield linked


def _name_readmes(page: Path, text: str) -> str:
    """Let links to directories point to the README in them."""

    def replaced(match: re.Match[str]) -> str:
        before, name, after = match.groups()
        is_directory = (page.parent / name).is_dir()
        return f"{before}{name.rstrip('/')}/README.md{after}" if is_directory else match[0]

    return _LINK.sub(replaced, text)


def adapt(text: str) -> str:
    """Insert blank lines before lists and tables, and indent the content of items by four."""
    lines: list[str] = []
    offsets: list[int] = []  # columns in the source where the content of each open item starts
    fence = ""
    previous = ""
    for line in text.splitlines():
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        if fence:
            lines.append(_shifted(line, offsets))
            if bare.startswith(fence) and not bare.strip("`~ "):
                fence = ""
            previous = line
            continue
        item = _ITEM.match(bare)
        # A line of a paragraph may be indented less than its item.
        if bare and (item or not previous.strip() or not offsets or _is_block(bare)):
            while offsets and indent < offsets[-1]:
                offsets.pop()
        before = previous.strip()
        starts_list = _FIRST_ITEM.match(bare) and not offsets and not _ITEM.match(before)
        starts_table = bare.startswith("|") and not before.startswith("|")
        if before and not _in_item(lines) and (starts_list or starts_table):
            lines.append("")
        lines.append(_shifted(line, offsets))
        if item:
            offsets.append(indent + item.end())
        if opening := _FENCE.match(bare):
            fence = opening[1]
        previous = line
    return "\n".join(lines) + "\n"


def _is_block(bare: str) -> bool:
    """Headings, fences and tables end the paragraph of an item."""
    return bare.startswith(("#", "```", "~~~", "|", "<!--"))


def _in_item(lines: list[str]) -> bool:
    """Whether the last line belongs to an item of a list, also as its continuation."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if _ITEM.match(line.lstrip()):
            return True
        if not line.startswith(" "):
            return False
    return False


def _shifted(line: str, offsets: list[int]) -> str:
    bare = line.lstrip(" ")
    if not bare or not offsets:
        return line.rstrip() if not bare else line
    rest = max(0, len(line) - len(bare) - offsets[-1])
    return " " * (_INDENT * len(offsets) + rest) + bare

"""`sluice rag`: documents, added, found and removed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.commands.gateway_options import add_gateway, connect
from client.commands.words import STDIN, natural, raw_bytes
from client.exits import Exit
from client.terminal.console import Console, add_output
from client.terminal.table import Column
from client.terminal.text import ago, plural

if TYPE_CHECKING:
    from client import Sluice

USUAL = 50
NAMESPACE = "default"
#: By the end of a file's name; anything else is plain text.
_TYPES = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".html": "text/html",
    ".htm": "text/html",
    ".pdf": "application/pdf",
}
Row = Mapping[str, Any]
DOCUMENT_COLUMNS = (
    Column("DOCUMENT", lambda row: row.get("id")),
    Column("TITLE", lambda row: row.get("title")),
    Column("TYPE", lambda row: row.get("media_type")),
    Column("CHARS", lambda row: row.get("chars"), right=True),
    Column("PASSAGES", lambda row: row.get("chunks"), right=True),
    Column("ADDED", lambda row: ago(row.get("added_ts")), right=True),
)
HIT_COLUMNS = (
    Column("SCORE", lambda row: f"{row.get('score', 0):.3f}", right=True),
    Column("DOCUMENT", lambda row: row.get("document_id")),
    Column("AT", lambda row: f"{row.get('start')}–{row.get('end')}"),
    Column("PASSAGE", lambda row: " ".join(str(row.get("quote", "")).split())),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    adding = actions.add_parser("add", help="take in files; the same id again replaces it")
    adding.add_argument(
        "files", nargs="+", metavar="FILE", help="text, Markdown, HTML, PDF; -: stdin"
    )
    adding.add_argument("--id", help="of one file alone (default: its name)")
    adding.add_argument("--title", help="of one file alone")
    adding.add_argument("--type", help="media type (default: by the file's name)")
    adding.set_defaults(work=_add)
    searching = actions.add_parser("search", help="passages that fit, best first")
    searching.add_argument("query", metavar="WORDS")
    searching.add_argument("-k", "--top", type=natural, metavar="N", help="at most so many")
    searching.add_argument(
        "--mode", choices=("auto", "lexical", "vector"), help="by words, meaning"
    )
    searching.add_argument("--answer", action="store_true", help="an answer in words, too")
    searching.set_defaults(work=_search)
    listing = actions.add_parser("ls", help="documents, the last changed first")
    listing.add_argument("-n", "--limit", type=natural, default=USUAL, metavar="N")
    listing.set_defaults(work=_list)
    removing = actions.add_parser("rm", help="forget documents")
    removing.add_argument("documents", nargs="+", metavar="DOCUMENT")
    removing.set_defaults(work=_remove)
    naming = actions.add_parser("namespaces", help="those that hold anything")
    naming.set_defaults(work=_namespaces)
    for action in (adding, searching, listing, removing):
        action.add_argument("--ns", default=NAMESPACE, metavar="NAME", help="namespace (default)")
    for action in actions.choices.values():
        add_gateway(action)
        add_output(action)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    code: int = arguments.work(Console.of(arguments), connect(arguments), arguments)
    return code


def _add(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    if len(arguments.files) > 1 and (arguments.id or arguments.title):
        console.complain("sluice: --id and --title are for one file alone")
        return Exit.USAGE
    rows = []
    for number, file in enumerate(arguments.files):
        console.progress.bar("documents", number, len(arguments.files))
        told = sluice.rag.add(
            raw_bytes(file),
            namespace=arguments.ns,
            document_id=arguments.id or (None if file == STDIN else Path(file).name),
            title=arguments.title,
            media_type=arguments.type or _TYPES.get(Path(file).suffix.lower(), "text/plain"),
        )
        rows.append(dict(told.raw))
    columns = (
        Column("DOCUMENT", lambda row: row.get("document_id")),
        Column("PASSAGES", lambda row: row.get("chunks"), right=True),
        Column("CHARS", lambda row: row.get("chars"), right=True),
        Column("", lambda row: "replaced" if row.get("replaced") else "new"),
    )
    console.listing(columns, rows)
    return Exit.OK


def _search(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    found = sluice.rag.search(
        arguments.query,
        namespace=arguments.ns,
        top_k=arguments.top,
        mode=arguments.mode,
        answer=arguments.answer,
    )
    if console.output == "json":
        console.json(dict(found.raw))
        return Exit.OK
    if found.text and console.for_people:
        console.stream(f"{found.text}\n\n")
    console.listing(HIT_COLUMNS, [dict(hit.raw) for hit in found.hits], "nothing found")
    return Exit.OK


def _list(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    documents = islice(sluice.rag.list(arguments.ns), arguments.limit)
    rows = (dict(each.raw) for each in documents)
    console.listing(DOCUMENT_COLUMNS, rows, f"no documents in {arguments.ns}")
    return Exit.OK


def _remove(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    for document in arguments.documents:
        sluice.rag.delete(document, arguments.ns)
    console.say(f"{plural(len(arguments.documents), 'document')} forgotten")
    return Exit.OK


def _namespaces(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    names = sluice.rag.namespaces()
    if console.output == "json":
        console.json(names)
        return Exit.OK
    for name in names:
        console.line(name) if console.for_people else console.json(name)
    return Exit.OK

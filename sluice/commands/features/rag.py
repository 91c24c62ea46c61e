"""`sluice rag`: add, search and delete documents."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.commands.arguments import (
    STDIN,
    add_gateway_option,
    add_limit_option,
    positive_int,
    read_bytes,
    run_action,
)
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.render import Column
from sluice.terminal.text import count_of, format_ago

if TYPE_CHECKING:
    from sluice import Sluice

NAMESPACE = "default"
#: Media types by file extension; other files are plain text.
_MEDIA_TYPES = {
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
    Column("ADDED", lambda row: format_ago(row.get("added_ts")), right=True),
)
HIT_COLUMNS = (
    Column("SCORE", lambda row: f"{row.get('score', 0):.3f}", right=True),
    Column("DOCUMENT", lambda row: row.get("document_id")),
    Column("AT", lambda row: f"{row.get('start')}–{row.get('end')}"),
    Column("PASSAGE", lambda row: " ".join(str(row.get("quote", "")).split())),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """Examples:
  sluice rag add handbook.pdf notes.md
  sluice rag search "opening hours" --answer
  sluice rag ls --ns support
  sluice rag rm handbook.pdf
  sluice rag namespaces"""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser(
        "add", help="add files; an existing document with the same id is replaced"
    )
    add.add_argument(
        "files", nargs="+", metavar="FILE", help="text, Markdown, HTML or PDF file; - for stdin"
    )
    add.add_argument("--id", help="document id, for a single file (default: file name)")
    add.add_argument("--title", help="title, for a single file")
    add.add_argument("--type", help="media type (default: by file extension)")
    add.set_defaults(work=_add)
    search = actions.add_parser("search", help="find matching passages, best first")
    search.add_argument("query", metavar="QUERY")
    search.add_argument(
        "-k", "--top", type=positive_int, metavar="N", help="maximum number of passages"
    )
    search.add_argument(
        "--mode",
        choices=("auto", "lexical", "vector"),
        help="lexical (by words) or vector (by meaning)",
    )
    search.add_argument("--answer", action="store_true", help="also generate an answer")
    search.set_defaults(work=_search)
    list_ = actions.add_parser("ls", help="list documents, most recently changed first")
    add_limit_option(list_)
    list_.set_defaults(work=_list)
    remove = actions.add_parser("rm", help="delete documents")
    remove.add_argument("documents", nargs="+", metavar="DOCUMENT")
    remove.set_defaults(work=_remove)
    namespaces = actions.add_parser("namespaces", help="list the namespaces that have documents")
    namespaces.set_defaults(work=_namespaces)
    for action in (add, search, list_, remove):
        action.add_argument(
            "--ns", default=NAMESPACE, metavar="NAME", help=f"namespace (default: {NAMESPACE})"
        )
    for action in actions.choices.values():
        add_gateway_option(action)
        add_output_options(action)


def run(arguments: argparse.Namespace) -> int:
    return run_action(arguments)


def _add(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    if len(arguments.files) > 1 and (arguments.id or arguments.title):
        console.error("sluice: --id and --title can be used with a single file only")
        return ExitCode.USAGE
    rows = []
    for number, file in enumerate(arguments.files):
        console.progress.show_bar("documents", number, len(arguments.files))
        added = sluice.rag.add(
            read_bytes(file),
            namespace=arguments.ns,
            document_id=arguments.id or (None if file == STDIN else Path(file).name),
            title=arguments.title,
            media_type=arguments.type or _MEDIA_TYPES.get(Path(file).suffix.lower(), "text/plain"),
        )
        rows.append(dict(added.raw))
    columns = (
        Column("DOCUMENT", lambda row: row.get("document_id")),
        Column("PASSAGES", lambda row: row.get("chunks"), right=True),
        Column("CHARS", lambda row: row.get("chars"), right=True),
        Column("", lambda row: "replaced" if row.get("replaced") else "new"),
    )
    console.print_rows(columns, rows)
    return ExitCode.OK


def _search(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    found = sluice.rag.search(
        arguments.query,
        namespace=arguments.ns,
        top_k=arguments.top,
        mode=arguments.mode,
        answer=arguments.answer,
    )
    if console.output == "json":
        console.print_json(dict(found.raw))
        return ExitCode.OK
    if found.text and console.is_table:
        console.write(f"{found.text}\n\n")
    console.print_rows(HIT_COLUMNS, [dict(hit.raw) for hit in found.hits], "no matches")
    return ExitCode.OK


def _list(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    documents = islice(sluice.rag.list(arguments.ns), arguments.limit)
    rows = (dict(each.raw) for each in documents)
    console.print_rows(DOCUMENT_COLUMNS, rows, f"no documents in {arguments.ns}")
    return ExitCode.OK


def _remove(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    for document in arguments.documents:
        sluice.rag.delete(document, arguments.ns)
    console.info(f"{count_of(len(arguments.documents), 'document')} deleted")
    return ExitCode.OK


def _namespaces(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    names = sluice.rag.namespaces()
    if console.output == "json":
        console.print_json(names)
        return ExitCode.OK
    for name in names:
        console.print_line(name) if console.is_table else console.print_json(name)
    return ExitCode.OK

"""`sluice image`: upload, watch and fetch images."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.commands.gateway_options import STUBBORN, add_gateway, connect
from client.commands.words import STDIN, natural, raw_bytes
from client.exits import Exit
from client.terminal.console import Console, add_output
from client.terminal.table import Column
from client.terminal.text import plural, size

if TYPE_CHECKING:
    from client import Sluice

USUAL = 50
#: What the gateway can read, by the end of a file's name.
_TYPES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".heic": "image/heic",
}
Row = Mapping[str, Any]


def _pixels(image: Row) -> str:
    wide, high = image.get("processed_width"), image.get("processed_height")
    return f"{wide}×{high}" if wide and high else ""


COLUMNS = (
    Column("IMAGE", lambda row: row.get("image_id")),
    Column("STATUS", lambda row: row.get("status"), status=True),
    Column("STAGE", lambda row: row.get("stage")),
    Column("SIZE", lambda row: size(row.get("file_size")), right=True),
    Column("PIXELS", _pixels),
    Column("FILE", lambda row: row.get("filename")),
    Column("ERROR", lambda row: row.get("error")),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    uploading = actions.add_parser("upload", help="send files")
    uploading.add_argument("files", nargs="+", metavar="FILE")
    uploading.add_argument("--type", help="media type (default: by the file's name)")
    uploading.add_argument("--detect", choices=("auto", "none"), help="whether faces are blurred")
    uploading.add_argument("--wait", action="store_true", help="until they are processed")
    uploading.set_defaults(work=_upload)
    watching = actions.add_parser("watch", help="follow them until they are processed")
    showing = actions.add_parser("show", help="how one is")
    fetching = actions.add_parser("get", help="the processed image, to a file or stdout")
    retrying = actions.add_parser("retry", help="send the bytes of one that failed again")
    removing = actions.add_parser("rm", help="delete them, with everything made of them")
    listing = actions.add_parser("ls", help="the newest first")
    listing.add_argument("-n", "--limit", type=natural, default=USUAL, metavar="N")
    listing.set_defaults(work=_list)
    watching.add_argument("image_ids", nargs="+", metavar="IMAGE")
    watching.set_defaults(work=_watch)
    showing.add_argument("image_id", metavar="IMAGE")
    showing.set_defaults(work=_show)
    fetching.add_argument("image_id", metavar="IMAGE")
    fetching.add_argument("-O", "--to", metavar="FILE", default=STDIN, help="default: stdout")
    fetching.set_defaults(work=_get)
    retrying.add_argument("image_id", metavar="IMAGE")
    retrying.add_argument("file", metavar="FILE")
    retrying.set_defaults(work=_retry)
    removing.add_argument("image_ids", nargs="+", metavar="IMAGE")
    removing.set_defaults(work=_remove)
    for action in actions.choices.values():
        add_gateway(action)
        add_output(action)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    sluice = connect(arguments, retries=STUBBORN)
    code: int = arguments.work(Console.of(arguments), sluice, arguments)
    return code


def _type(file: str) -> str | None:
    return _TYPES.get(Path(file).suffix.lower())


def _upload(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    rows = []
    for number, file in enumerate(arguments.files):
        console.progress.bar("uploading", number, len(arguments.files))
        image = sluice.images.upload(
            raw_bytes(file),
            content_type=arguments.type or _type(file),
            filename=None if file == STDIN else Path(file).name,
            detect=arguments.detect,
        )
        rows.append(dict(image.raw))
    image_ids = [str(row["image_id"]) for row in rows]
    if arguments.wait:
        return _follow(console, sluice, image_ids)
    if console.for_people and not console.terminal:
        for image_id in image_ids:
            console.line(image_id)
    else:
        console.listing(COLUMNS, rows)
    return Exit.OK


def _watch(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    for image_id in arguments.image_ids:
        sluice.images.get(image_id)
    return _follow(console, sluice, arguments.image_ids)


def _follow(console: Console, sluice: Sluice, image_ids: Sequence[str]) -> int:
    for event in sluice.images.stream(*image_ids, say=console.say):
        data = event.data if isinstance(event.data, Mapping) else {}
        name = data.get("image_id", image_ids[0])
        console.progress.show(f"{name}  {data.get('stage', '')} {data.get('progress', '')}%")
    console.progress.clear()
    images = [sluice.images.get(image_id) for image_id in image_ids]
    console.listing(COLUMNS, [dict(image.raw) for image in images])
    return Exit.FAILED if any(image.status == "failed" for image in images) else Exit.OK


def _show(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    raw = dict(sluice.images.get(arguments.image_id).raw)
    pairs = [(name.replace("_", " "), value) for name, value in raw.items()]
    plain = [(name, value) for name, value in pairs if not isinstance(value, (dict, list))]
    console.facts(plain, raw)
    return Exit.OK


def _get(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    if arguments.to == STDIN and sys.stdout.isatty():
        console.complain("sluice: an image is nothing for a terminal; give --to FILE, or a pipe")
        return Exit.USAGE
    content = sluice.images.content(arguments.image_id)
    if arguments.to == STDIN:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        Path(arguments.to).write_bytes(content)
        console.say(f"{arguments.to}: {size(len(content))}")
    return Exit.OK


def _retry(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    content = raw_bytes(arguments.file)
    place = sluice.images.retry(arguments.image_id)
    image = sluice.images.send(place, content, content_type=_type(arguments.file))
    console.listing(COLUMNS, [dict(image.raw)])
    return Exit.OK


def _list(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    images = islice(sluice.images.list(), arguments.limit)
    console.listing(COLUMNS, (dict(image.raw) for image in images), "no images")
    return Exit.OK


def _remove(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    for image_id in arguments.image_ids:
        sluice.images.delete(image_id)
    console.say(f"{plural(len(arguments.image_ids), 'image')} deleted")
    return Exit.OK

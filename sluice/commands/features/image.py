"""`sluice image`: upload, watch and download images."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.commands.arguments import (
    PERSISTENT_RETRIES,
    STDIN,
    add_gateway_option,
    add_limit_option,
    read_bytes,
    run_action,
)
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.render import Column
from sluice.terminal.text import count_of, format_bytes

if TYPE_CHECKING:
    from sluice import Sluice

#: Media types by file extension.
_MEDIA_TYPES = {
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
    Column("SIZE", lambda row: format_bytes(row.get("file_size")), right=True),
    Column("PIXELS", _pixels),
    Column("FILE", lambda row: row.get("filename")),
    Column("ERROR", lambda row: row.get("error")),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """Examples:
  sluice image upload holiday.jpg --wait
  sluice image watch IMAGE
  sluice image show IMAGE
  sluice image get IMAGE --to holiday.webp
  sluice image retry IMAGE holiday.jpg
  sluice image ls -n 10
  sluice image rm IMAGE"""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    upload = actions.add_parser("upload", help="upload image files")
    upload.add_argument("files", nargs="+", metavar="FILE")
    upload.add_argument("--type", help="media type (default: by file extension)")
    upload.add_argument(
        "--detect", choices=("auto", "none"), help="face detection: auto blurs faces, none does not"
    )
    upload.add_argument("--wait", action="store_true", help="wait until the images are processed")
    upload.set_defaults(work=_upload)
    watch = actions.add_parser("watch", help="follow images until they are processed")
    show = actions.add_parser("show", help="show an image")
    fetch = actions.add_parser("get", help="download the processed image")
    retry = actions.add_parser("retry", help="upload the file of a failed image again")
    remove = actions.add_parser("rm", help="delete images and all data derived from them")
    list_ = actions.add_parser("ls", help="list images, newest first")
    add_limit_option(list_)
    list_.set_defaults(work=_list)
    watch.add_argument("image_ids", nargs="+", metavar="IMAGE")
    watch.set_defaults(work=_watch)
    show.add_argument("image_id", metavar="IMAGE")
    show.set_defaults(work=_show)
    fetch.add_argument("image_id", metavar="IMAGE")
    fetch.add_argument(
        "-O", "--to", metavar="FILE", default=STDIN, help="output file (default: stdout)"
    )
    fetch.set_defaults(work=_get)
    retry.add_argument("image_id", metavar="IMAGE")
    retry.add_argument("file", metavar="FILE")
    retry.set_defaults(work=_retry)
    remove.add_argument("image_ids", nargs="+", metavar="IMAGE")
    remove.set_defaults(work=_remove)
    for action in actions.choices.values():
        add_gateway_option(action)
        add_output_options(action)


def run(arguments: argparse.Namespace) -> int:
    return run_action(arguments, retries=PERSISTENT_RETRIES)


def _media_type(file: str) -> str | None:
    return _MEDIA_TYPES.get(Path(file).suffix.lower())


def _upload(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    rows = []
    for number, file in enumerate(arguments.files):
        console.progress.show_bar("uploading", number, len(arguments.files))
        image = sluice.images.upload(
            read_bytes(file),
            content_type=arguments.type or _media_type(file),
            filename=None if file == STDIN else Path(file).name,
            detect=arguments.detect,
        )
        rows.append(dict(image.raw))
    image_ids = [str(row["image_id"]) for row in rows]
    if arguments.wait:
        return _follow(console, sluice, image_ids)
    if console.is_table and not console.is_terminal:
        for image_id in image_ids:
            console.print_line(image_id)
    else:
        console.print_rows(COLUMNS, rows)
    return ExitCode.OK


def _watch(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    for image_id in arguments.image_ids:
        sluice.images.get(image_id)
    return _follow(console, sluice, arguments.image_ids)


def _follow(console: Console, sluice: Sluice, image_ids: Sequence[str]) -> int:
    for event in sluice.images.stream(*image_ids, notify=console.info):
        data = event.data if isinstance(event.data, Mapping) else {}
        name = data.get("image_id", image_ids[0])
        console.progress.show(f"{name}  {data.get('stage', '')} {data.get('progress', '')}%")
    console.progress.clear()
    images = [sluice.images.get(image_id) for image_id in image_ids]
    console.print_rows(COLUMNS, [dict(image.raw) for image in images])
    return ExitCode.FAILED if any(image.status == "failed" for image in images) else ExitCode.OK


def _show(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    raw = dict(sluice.images.get(arguments.image_id).raw)
    pairs = [(name.replace("_", " "), value) for name, value in raw.items()]
    plain = [(name, value) for name, value in pairs if not isinstance(value, (dict, list))]
    console.print_details(plain, raw)
    return ExitCode.OK


def _get(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    if arguments.to == STDIN and sys.stdout.isatty():
        console.error("sluice: not writing binary data to a terminal; use --to FILE or a pipe")
        return ExitCode.USAGE
    content = sluice.images.content(arguments.image_id)
    if arguments.to == STDIN:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        Path(arguments.to).write_bytes(content)
        console.info(f"{arguments.to}: {format_bytes(len(content))}")
    return ExitCode.OK


def _retry(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    content = read_bytes(arguments.file)
    upload = sluice.images.retry(arguments.image_id)
    image = sluice.images.send(upload, content, content_type=_media_type(arguments.file))
    console.print_rows(COLUMNS, [dict(image.raw)])
    return ExitCode.OK


def _list(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    images = islice(sluice.images.list(), arguments.limit)
    console.print_rows(COLUMNS, (dict(image.raw) for image in images), "no images")
    return ExitCode.OK


def _remove(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    for image_id in arguments.image_ids:
        sluice.images.delete(image_id)
    console.info(f"{count_of(len(arguments.image_ids), 'image')} deleted")
    return ExitCode.OK

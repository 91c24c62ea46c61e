"""Writes an upload to a file in the spool, from the body or from a form. The calls of a sink block,
and are made from a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple, Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sluice.common.features.images.storage.spool import Spool, SpoolFile
from sluice.common.observability.heartbeats import Heartbeat
from sluice.gateway.http.body import too_large
from sluice.gateway.http.problems import Problem

OCTETS: Final = "application/octet-stream"
FORM: Final = "multipart/form-data"
#: Bytes that a form may have besides the file.
FORM_BYTES: Final = 64 * 1024
#: Formats of images, as in IMAGE_FORMATS, by media type.
_FORMATS: Final = {
    "image/jpeg": "jpeg",
    "image/png": "png",
    "image/webp": "webp",
    "image/gif": "gif",
    "image/avif": "avif",
    "image/tiff": "tiff",
    "image/heic": "heic",
    "image/heif": "heic",
}
#: All media types that uploads may have.
UPLOAD_TYPES: Final = (*_FORMATS, OCTETS)
#: Common aliases.
_ALSO: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg"}


def accepted_types(workers: Iterable[Heartbeat]) -> Sequence[str]:
    """Media types of the formats that live workers support.

    All of them if no worker reports its formats: a third-party pipeline may process the uploads.
    """
    reported = [beat.images.formats for beat in workers if beat.images is not None]
    known = [formats for formats in reported if formats is not None]
    if not known:
        return UPLOAD_TYPES
    supported = set().union(*known)
    return [name for name in UPLOAD_TYPES if name == OCTETS or _FORMATS[name] in supported]


def normalize_type(value: str) -> str:
    """A Content-Type without parameters, with aliases resolved."""
    plain = value.partition(";")[0].strip().lower()
    return _ALSO.get(plain, plain)


#: The field of a form that has the image.
FIELD: Final = "file"
_FIELD: Final = FIELD.encode()
_DISPOSITION: Final = "content-disposition"
_TYPE: Final = "content-type"


class SpooledUpload(NamedTuple):
    """A complete upload in the spool."""

    content_type: str
    size_bytes: int
    sha256: str


class Sink(Protocol):
    """Receives an upload in pieces."""

    def feed(self, data: bytes) -> None:
        """Write the next piece; raises the problem of an invalid upload."""

    def finish(self) -> SpooledUpload:
        """Complete the upload; raises the problem of an invalid one."""

    def discard(self) -> None:
        """Remove the upload."""


class FileSink:
    """For a body that is the file itself."""

    def __init__(
        self, spool: Spool, image_id: str, upload_id: str, limit: int, content_type: str = OCTETS
    ) -> None:
        self._spool = spool
        self._names = image_id, upload_id
        self._limit = limit
        self.content_type = content_type
        self._file: SpoolFile | None = None
        self.size_bytes = 0

    def feed(self, data: bytes) -> None:
        if not data:
            return
        self.size_bytes += len(data)
        if self.size_bytes > self._limit:
            raise too_large(self._limit)
        if self._file is None:
            self._file = self._spool.create(*self._names)
        self._file.write(data)

    def finish(self) -> SpooledUpload:
        if self._file is None:
            raise Problem(400, "empty_upload", "The upload is empty; send the image itself.")
        size, sha256 = self._file.commit()
        return SpooledUpload(self.content_type, size, sha256)

    def discard(self) -> None:
        """Remove the file, even if it is complete."""
        if self._file is not None:
            self._file.discard()
            self._spool.remove(*self._names)


class FormSink:
    """For a form: writes the file in the field `file`, and ignores other fields."""

    def __init__(self, boundary: bytes, into: FileSink, accepted: Sequence[str]) -> None:
        """`accepted`: media types that the file may have."""
        self._into = into
        self._accepted = accepted
        self._headers: dict[str, str] = {}
        self._name = self._value = b""
        self._in_file_part = self._file_seen = self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._headers.clear,
                    "on_header_field": self._on_name,
                    "on_header_value": self._on_value,
                    "on_header_end": self._on_header,
                    "on_headers_finished": self._on_headers,
                    "on_part_data": self._on_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise _malformed(str(error)) from None

    def feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(str(error)) from None

    def finish(self) -> SpooledUpload:
        """Check that the form is complete and has the file."""
        if not self._ended:
            raise _malformed("it ends before its last boundary")
        if not self._file_seen:
            raise Problem(
                400, "file_missing", f"The form has no field `{FIELD}`; send the image in it."
            )
        return self._into.finish()

    def discard(self) -> None:
        self._into.discard()

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        self._headers[self._name.decode("latin-1").lower()] = self._value.decode("latin-1")
        self._name = self._value = b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(_DISPOSITION))
        if options.get(b"name") != _FIELD:
            return
        if self._file_seen:
            raise _malformed(f"there is more than one field `{FIELD}`")
        self._in_file_part = self._file_seen = True
        self._into.content_type = check_type(self._headers.get(_TYPE, ""), self._accepted)

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file_part:
            self._into.feed(data[start:end])

    def _on_part_end(self) -> None:
        self._in_file_part = False

    def _on_end(self) -> None:
        self._ended = True


def check_type(declared: str, accepted: Sequence[str]) -> str:
    """The media type of an upload; raises 415 if it is not in `accepted`."""
    found = normalize_type(declared) or OCTETS
    if found in accepted:
        return found
    detail = f"The Content-Type must be one of: {', '.join(accepted)}"
    if found in UPLOAD_TYPES:
        detail = f"No worker processes {found} (see IMAGE_FORMATS). {detail}"
    raise unsupported_media_type(detail, accepted)


def unsupported_media_type(detail: str, accepted: Sequence[str]) -> Problem:
    """The Content-Type of an upload is not supported."""
    headers = {"Accept-Post": ", ".join(accepted)}
    whole = f"{detail}; or send a form with the field `{FIELD}`."
    return Problem(415, "unsupported_media_type", whole, headers=headers)


def _malformed(detail: str) -> Problem:
    return Problem(400, "malformed_multipart", f"The form cannot be read: {detail}.")


#: Bytes passed to a thread at once.
BLOCK_BYTES: Final = 1 << 20


class UploadWriter:
    """Writes one upload to a sink from threads."""

    def __init__(self, sink: Sink, threads: Executor) -> None:
        self._sink = sink
        self._threads = threads
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._writing: asyncio.Future[None] | None = None
        #: Received bytes, written or not.
        self.size_bytes = 0

    async def write(self, data: bytes) -> None:
        """Buffer the next piece; raises the error of an earlier one."""
        self.size_bytes += len(data)
        self._buffer.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes >= BLOCK_BYTES:
            await self._write_block()

    async def finish(self) -> SpooledUpload:
        """Complete the upload; the file is durable when this returns."""
        await self._write_block()
        await self._wait_written()
        loop = asyncio.get_running_loop()
        finishing = loop.run_in_executor(self._threads, self._sink.finish)
        self._writing = asyncio.ensure_future(_ended(finishing))
        return await asyncio.shield(finishing)

    async def discard(self) -> None:
        """Remove the upload; the file is deleted when this returns."""
        if self._writing is not None:
            with contextlib.suppress(Exception):
                await self._writing  # the file must not be closed during a write
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._sink.discard)

    async def _write_block(self) -> None:
        await self._wait_written()
        block = b"".join(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(self._threads, self._sink.feed, block)

    async def _wait_written(self) -> None:
        if self._writing is not None:
            # If the request is canceled here, the thread continues; `discard` waits for it.
            await asyncio.shield(self._writing)


async def _ended(finishing: asyncio.Future[SpooledUpload]) -> None:
    await asyncio.wait({finishing})

"""What the headers of an upload say about it."""

from __future__ import annotations

from typing import Final, NamedTuple

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers

from gateway.body import exceeds, too_large
from gateway.images.media_types import FORM, FORM_BYTES, OCTETS, plain_type
from gateway.images.sinks import checked_type, unsupported
from gateway.problems import Problem

#: A longer Content-Type is none of an image's.
_MOST_TYPE: Final = 256


class Declared(NamedTuple):
    """Known before a byte of the body is read."""

    content_type: str
    #: Of a form; None where the body is the file.
    boundary: bytes | None
    length: bytes
    encoding: str

    @classmethod
    def of(cls, headers: Headers) -> Declared:
        """As the request says it."""
        return cls(
            headers.get("content-type", ""),
            None,
            headers.get("content-length", "").encode("latin-1").lstrip(b"0"),
            headers.get("content-encoding", "").strip().lower(),
        )

    def checked(self, limit: int) -> Declared:
        """The same with a type of ours; raises 413 and 415, in this order."""
        is_form = plain_type(self.content_type) == FORM
        if exceeds(self.length, limit + FORM_BYTES if is_form else limit):
            raise too_large(limit)
        if len(self.content_type) > _MOST_TYPE or self.encoding not in ("", "identity"):
            raise unsupported("Uploads are sent as they are, without a Content-Encoding")
        if not is_form:
            return self._replace(content_type=checked_type(self.content_type))
        _, options = parse_options_header(self.content_type)
        boundary = options.get(b"boundary")
        if not boundary:
            raise Problem(400, "malformed_multipart", "The form's Content-Type has no boundary.")
        return self._replace(content_type=OCTETS, boundary=boundary)

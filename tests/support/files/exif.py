"""EXIF data as a phone writes it, with private data that must be removed."""

from __future__ import annotations

import struct
from collections.abc import Sequence

#: None of these may be in a processed image.
SERIAL = b"SN-0451-SECRET"
GPS_AREA = b"HOME-OF-THE-OWNER"
MAKER_NOTE = b"MAKERNOTE-SECRET"
OWNER = b"Erika Mustermann"
COMMENT = b"a private remark"
THUMBNAIL_MARK = b"thumbnail of the uncropped picture"
SECRETS = (SERIAL, GPS_AREA, MAKER_NOTE, OWNER, COMMENT, THUMBNAIL_MARK)

_ASCII, _SHORT, _LONG, _RATIONAL, _UNDEFINED = 2, 3, 4, 5, 7
Entry = tuple[int, int, int, bytes]


def exif(orientation: int = 1, thumbnail: bytes = b"") -> bytes:
    """A TIFF structure with image, camera and GPS data and a thumbnail."""
    # Offsets depend on lengths, but lengths do not depend on offsets.
    first = _directories(orientation, thumbnail, (0, 0, 0, 0))
    offsets = []
    at = 8
    for directory in first:
        offsets.append(at)
        at += len(directory)
    return b"MM\0*" + struct.pack(">I", 8) + b"".join(
        _directories(orientation, thumbnail, (offsets[1], offsets[2], offsets[3], at), offsets)
    ) + thumbnail  # fmt: skip


def xmp(orientation: int | None = None) -> bytes:
    turned = f' tiff:Orientation="{orientation}"' if orientation else ""
    return (
        '<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">'
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
        'xmlns:tiff="http://ns.adobe.com/tiff/1.0/" xmlns:exif="http://ns.adobe.com/exif/1.0/" '
        f'xmlns:dc="http://purl.org/dc/elements/1.1/"{turned} exif:GPSLatitude="52,30.9N" '
        f'exif:GPSAreaInformation="{GPS_AREA.decode()}" dc:creator="{OWNER.decode()}"/>'
        '</rdf:RDF></x:xmpmeta><?xpacket end="w"?>'
    ).encode()


def _directories(
    orientation: int,
    thumbnail: bytes,
    pointers: tuple[int, int, int, int],
    offsets: Sequence[int] = (8, 8, 8, 8),
) -> list[bytes]:
    camera, gps_offset, small, picture = pointers
    main: list[Entry] = [
        _text(0x010F, b"Camera Works"),
        (0x0112, _SHORT, 1, struct.pack(">HH", orientation, 0)),
        _text(0x013B, OWNER),
        (0x8769, _LONG, 1, struct.pack(">I", camera)),
        (0x8825, _LONG, 1, struct.pack(">I", gps_offset)),
    ]
    body: list[Entry] = [
        (0x927C, _UNDEFINED, len(MAKER_NOTE), MAKER_NOTE),
        (0x9286, _UNDEFINED, len(COMMENT) + 8, b"ASCII\0\0\0" + COMMENT),
        _text(0xA431, SERIAL),
    ]
    gps: list[Entry] = [
        _text(0x0001, b"N"),
        (0x0002, _RATIONAL, 3, struct.pack(">6I", 52, 1, 30, 1, 54, 1)),
        _text(0x0003, b"E"),
        (0x0004, _RATIONAL, 3, struct.pack(">6I", 13, 1, 22, 1, 41, 1)),
        (0x001C, _UNDEFINED, len(GPS_AREA) + 8, b"ASCII\0\0\0" + GPS_AREA),
    ]
    second: list[Entry] = [
        (0x0103, _SHORT, 1, struct.pack(">HH", 6, 0)),
        (0x0201, _LONG, 1, struct.pack(">I", picture)),
        (0x0202, _LONG, 1, struct.pack(">I", len(thumbnail))),
    ]
    return [
        _directory(main, offsets[0], small if thumbnail else 0),
        _directory(body, offsets[1]),
        _directory(gps, offsets[2]),
        _directory(second, offsets[3]),
    ]


def _text(tag: int, words: bytes) -> Entry:
    return tag, _ASCII, len(words) + 1, words + b"\0"


def _directory(entries: Sequence[Entry], at: int, following: int = 0) -> bytes:
    head = struct.pack(">H", len(entries))
    beyond = at + 2 + 12 * len(entries) + 4
    tail = b""
    for tag, kind, count, content in entries:
        head += struct.pack(">HHI", tag, kind, count)
        if len(content) <= 4:
            head += content.ljust(4, b"\0")
        else:
            head += struct.pack(">I", beyond + len(tail))
            tail += content + bytes(len(content) % 2)
    return head + struct.pack(">I", following) + tail

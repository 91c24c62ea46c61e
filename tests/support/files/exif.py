"""EXIF data as a phone writes it, with private data that must be removed."""

from __future__ import annotations

import struct

from PIL import Image

#: None of these may be in a processed image.
SERIAL = b"SN-0451-SECRET"
GPS_AREA = b"HOME-OF-THE-OWNER"
MAKER_NOTE = b"MAKERNOTE-SECRET"
OWNER = b"Erika Mustermann"
COMMENT = b"a private remark"
THUMBNAIL_MARK = b"thumbnail of the uncropped picture"
SECRETS = (SERIAL, GPS_AREA, MAKER_NOTE, OWNER, COMMENT, THUMBNAIL_MARK)

_CAMERA_IFD, _GPS_IFD = 0x8769, 0x8825
_ENCODING = b"ASCII\0\0\0"


def exif(orientation: int = 1, thumbnail: bytes = b"") -> bytes:
    """A TIFF structure with image, camera and GPS data and a thumbnail."""
    tags = Image.Exif()
    main = {0x010F: "Camera Works", 0x0112: orientation, 0x013B: OWNER.decode()}
    tags.update(main)
    tags.get_ifd(_CAMERA_IFD).update(
        {0x927C: MAKER_NOTE, 0x9286: _ENCODING + COMMENT, 0xA431: SERIAL.decode()}
    )
    north, east = (52.0, 30.0, 54.0), (13.0, 22.0, 41.0)
    area = _ENCODING + GPS_AREA
    tags.get_ifd(_GPS_IFD).update({1: "N", 2: north, 3: "E", 4: east, 0x1C: area})
    made = tags.tobytes().removeprefix(b"Exif\0\0")
    if not thumbnail:
        return made
    # Pillow does not write the directory of a thumbnail.
    next_ifd, at = 8 + 2 + 12 * (len(main) + 2), len(made)
    where = struct.pack(">HHIIHHIII", 0x0201, 4, 1, at + 30, 0x0202, 4, 1, len(thumbnail), 0)
    linked = made[:next_ifd] + struct.pack(">I", at) + made[next_ifd + 4 :]
    return linked + struct.pack(">H", 2) + where + thumbnail


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

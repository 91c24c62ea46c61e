"""No metadata of a photograph is in the result."""

from __future__ import annotations

import io
import zipfile

import pytest
from PIL import Image

from tests.support import bad_photos, color_profiles, photos
from tests.support.exif_bytes import COMMENT, GPS_AREA, OWNER, SECRETS, SERIAL, THUMBNAIL_MARK
from tests.support.photos import FORMATS, photograph
from tests.worker.features.images.pixels.kit import Make, chunks

#: Metadata in each test photograph, so that its absence in the result is meaningful.
IN_SOURCE = {
    "jpeg": {SERIAL, GPS_AREA, OWNER, COMMENT, THUMBNAIL_MARK},
    "png": {SERIAL, GPS_AREA, OWNER, COMMENT, THUMBNAIL_MARK},
    "webp": {SERIAL, GPS_AREA, OWNER, THUMBNAIL_MARK},
    "gif": {GPS_AREA, OWNER, COMMENT},
    "avif": {SERIAL, GPS_AREA, OWNER},
    "tiff": {SERIAL, GPS_AREA, OWNER, COMMENT},
    "heic": {SERIAL, GPS_AREA, OWNER, THUMBNAIL_MARK},
}
#: Byte sequences of metadata of any kind.
METADATA_MARKERS = (
    b"Exif", b"EXIF", b"II*\0", b"MM\0*", b"XMP ", b"xpacket", b"adobe:ns", b"ICCP", b"ICC_PROFILE",
    b"acsp", b"GPS", b"JFIF", b"\xff\xd8\xff", b"Photoshop", b"8BIM", b"Camera Works",
)  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("orientation", [1, 6])
def test_metadata_is_gone(make: Make, kind: str, orientation: int) -> None:
    source = photograph(kind, orientation, profile=color_profiles.display_p3())
    assert all(secret in source for secret in IN_SOURCE[kind])
    result = make(source, photos.CONTENT_TYPES[kind])
    for sign in (*SECRETS, *METADATA_MARKERS):
        assert sign not in result.webp, sign
    assert [name for name, _ in chunks(result.webp)] == [b"VP8 "]
    image = result.image
    assert dict(image.getexif()) == {}
    assert not {"exif", "xmp", "icc_profile", "comment"} & set(image.info)


def test_transparent_images_have_their_alpha_and_nothing_else(make: Make) -> None:
    image = photos.scene(64, 48)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    source = photos.encoded(
        image, "webp", exif=photos.exif(), xmp=photos.xmp(), icc_profile=color_profiles.plain_srgb()
    )
    result = make(source)
    assert [name for name, _ in chunks(result.webp)] == [b"VP8X", b"ALPH", b"VP8 "]
    flags = next(chunks(result.webp))[1][0]
    assert flags == 0b00010000  # alpha; no profile, EXIF, XMP or animation
    for sign in (*SECRETS, *METADATA_MARKERS):
        assert sign not in result.webp


def test_colours_of_transparent_pixels_are_removed(make: Make) -> None:
    """Content hidden by transparency."""
    image = Image.new("RGBA", (64, 64), (250, 10, 20, 0))
    image.paste((0, 200, 0, 255), (0, 0, 32, 64))
    result = make(photos.encoded(image, "png"))
    found = result.image.convert("RGBA").getpixel((60, 32))
    assert isinstance(found, tuple)
    assert found[3] == 0
    assert found[0] < 200


def test_trailing_data_is_removed(make: Make) -> None:
    source = bad_photos.jpeg_and_zip()
    assert zipfile.is_zipfile(io.BytesIO(source))
    result = make(source, "image/jpeg")
    assert not zipfile.is_zipfile(io.BytesIO(result.webp))
    assert bad_photos.ZIP_MEMBER.encode() not in result.webp
    assert b"PK\x03\x04" not in result.webp
    for source in (bad_photos.gif_and_script(), bad_photos.png_with_more()):
        assert bad_photos.SCRIPT in source
        result = make(source)
        assert b"alert" not in result.webp
        assert list(chunks(result.webp))

"""Facts reported about a processed image, and no metadata of the photograph."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import replace

import pytest
from PIL import Image

from common.contracts.images import Stage
from tests.support.files import bad_photos, color_profiles, photos
from tests.support.files.exif import COMMENT, GPS_AREA, OWNER, SECRETS, SERIAL, THUMBNAIL_MARK
from tests.support.files.photos import FORMATS, photograph
from tests.support.files.pixels import LIMITS, Make, chunks, near
from worker.features.images.detect.choice import Detector, DetectorChoice
from worker.features.images.pixels import pipeline
from worker.features.images.pixels.types import InvalidImage


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_file_gives_the_same_result(make: Make, kind: str) -> None:
    photo = photograph(kind, width=160, height=120)
    (made, webp), again = make(photo, detect=True), make(photo, detect=True)
    assert (made.sha256, made.md5) == (
        hashlib.sha256(webp).hexdigest(),
        hashlib.md5(webp).hexdigest(),
    )
    assert (made.size_bytes, made.width, made.height) == (len(webp), 160, 120)
    details = made.details
    assert json.loads(json.dumps(details)) == details
    assert set(details) == {
        "source_format", "source_frames", "has_alpha", "detector", "detections", "blur",
        "thumbhash", "dominant_color", "timings_ms",
    }  # fmt: skip
    assert (details["detector"], details["detections"]) == ("none", [])
    stages = {"validating", "decoding", "processing", "encoding"}
    for each in (made, again.made):
        assert each.details.pop("timings_ms").keys() == stages
    assert again == (made, webp)


def test_dominant_color_ignores_transparent_pixels(make: Make) -> None:
    def dominant(image: Image.Image) -> tuple[int, ...]:
        found = make(photos.encoded(image, "png")).made.details["dominant_color"]
        return tuple(bytes.fromhex(found[1:]))

    opaque = Image.new("RGB", (40, 30), (20, 120, 200))
    opaque.paste((250, 250, 0), (0, 0, 10, 30))
    assert near(dominant(opaque), (20, 120, 200), 3)
    image = Image.new("RGBA", (100, 100), (255, 0, 0, 0))
    assert dominant(image) == (0, 0, 0)
    image.paste((0, 0, 250, 255), (0, 0, 20, 20))
    assert near(dominant(image), (0, 0, 250), 3)


def test_the_detector_gets_the_final_pixels_and_may_change_them(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, tuple[int, int]]] = []

    def blurs(choice: DetectorChoice, image: Image.Image) -> tuple[str, list[dict[str, object]]]:
        seen.append((image.mode, image.size))
        image.paste((255, 0, 255), (0, 0, *image.size))
        return choice.name, [{"kind": "face"}]

    monkeypatch.setattr(pipeline, "find_and_blur", blurs)
    choice = DetectorChoice(Detector.CENTERFACE, "model.onnx")
    smaller = replace(LIMITS, max_width=320)
    result = make(photograph("jpeg", 6), limits=smaller, detect=True, detector=choice)
    assert seen == [("RGB", (320, 240))]
    details = result.made.details
    assert (details["detector"], details["detections"]) == ("centerface", [{"kind": "face"}])
    assert details["blur"] == "pixelate"
    assert near(result.pixel(0.5, 0.5), (255, 0, 255), 8)
    assert near(tuple(bytes.fromhex(details["dominant_color"][1:])), (255, 0, 255), 3)


def test_each_stage_is_noted_as_it_begins(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Stage] = []
    monkeypatch.setattr(pipeline, "note", noted.append)
    make(photograph())
    stages = [Stage.VALIDATING, Stage.DECODING, Stage.PROCESSING, Stage.ENCODING]
    assert noted == stages
    noted.clear()
    with pytest.raises(InvalidImage):
        make(photograph()[:2000])
    assert noted == stages[:2]


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
    source = photograph(kind, orientation, 160, 120, color_profiles.display_p3())
    assert all(secret in source for secret in IN_SOURCE[kind])
    result = make(source, photos.CONTENT_TYPES[kind])
    for sign in (*SECRETS, *METADATA_MARKERS):
        assert sign not in result.webp, sign
    assert [name for name, _ in chunks(result.webp)] == [b"VP8 "]
    image = result.image
    assert dict(image.getexif()) == {}
    assert not {"exif", "xmp", "icc_profile", "comment"} & set(image.info)


def test_transparent_images_have_their_alpha_and_nothing_else(make: Make) -> None:
    image = photos.harness(64, 48)
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
    webp = photograph("webp", width=64, height=48) + bad_photos.SCRIPT
    for source in (bad_photos.gif_and_script(), bad_photos.png_with_more(), webp):
        assert bad_photos.SCRIPT in source
        result = make(source)
        assert b"alert" not in result.webp
        assert list(chunks(result.webp))

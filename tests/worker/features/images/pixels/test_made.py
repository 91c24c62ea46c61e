"""Facts and placeholders of a processed image, and no metadata of the photograph."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import zipfile
from dataclasses import replace

import pytest
from PIL import Image

from sluice.common.contracts.images import Stage
from sluice.worker.features.images.detect.choice import Detector, DetectorChoice
from sluice.worker.features.images.pixels import pipeline
from sluice.worker.features.images.pixels.placeholder import make_placeholder, thumbhash
from sluice.worker.features.images.pixels.types import InvalidImage
from tests.support.files import bad_photos, color_profiles, exif, photos
from tests.support.files.photos import FORMATS, photograph
from tests.support.files.pixels import LIMITS, Make, chunks, near


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_file_gives_the_same_result(make: Make, kind: str) -> None:
    photo = photograph(kind, width=160, height=120)
    (made, webp), again = make(photo, detect=True), make(photo, detect=True)
    assert made.sha256 == hashlib.sha256(webp).hexdigest()
    assert made.md5 == hashlib.md5(webp).hexdigest()
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
        found = make(image).details["dominant_color"]
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
    details = result.details
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


#: Which test photographs have some metadata, so that its absence in the result is meaningful.
IN_SOURCE = {
    exif.COMMENT: {"jpeg", "png", "gif", "tiff"},
    exif.SERIAL: {*FORMATS} - {"gif"},
    exif.THUMBNAIL_MARK: {"jpeg", "png", "webp", "heic"},
    exif.GPS_AREA: {*FORMATS},
    exif.OWNER: {*FORMATS},
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
    assert all(secret in source for secret, kinds in IN_SOURCE.items() if kind in kinds)
    result = make(source, photos.CONTENT_TYPES[kind])
    for sign in (*exif.SECRETS, *METADATA_MARKERS):
        assert sign not in result.webp, sign
    assert [name for name, _ in chunks(result.webp)] == [b"VP8 "]
    image = result.image
    assert dict(image.getexif()) == {}
    assert not {"exif", "xmp", "icc_profile", "comment"} & set(image.info)


def test_transparent_images_have_their_alpha_and_nothing_else(make: Make) -> None:
    image = photos.scene(64, 48)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    private = {"exif": exif.exif(), "xmp": exif.xmp(), "icc_profile": color_profiles.plain_srgb()}
    result = make(photos.encoded(image, "webp", **private))
    assert [name for name, _ in chunks(result.webp)] == [b"VP8X", b"ALPH", b"VP8 "]
    [(_, flags), *_] = chunks(result.webp)
    assert flags[0] == 0b00010000  # alpha; no profile, EXIF, XMP or animation
    for sign in (*exif.SECRETS, *METADATA_MARKERS):
        assert sign not in result.webp


def test_colours_of_transparent_pixels_are_removed(make: Make) -> None:
    """Content hidden by transparency."""
    image = Image.new("RGBA", (64, 64), (250, 10, 20, 0))
    image.paste((0, 200, 0, 255), (0, 0, 32, 64))
    result = make(image)
    red, _, _, alpha = result.image.convert("RGBA").getpixel((60, 32))
    assert alpha == 0
    assert red < 200


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


#: Hashes by the public implementation: of random pixels of a size, opaque and with alpha.
RANDOM_PIXELS = {
    (20, 15): ("1f08060d826628a5488ba770456628880b77a7f9c8",
               "df07820c82080918e7448772c89f67a08b009bb4757aa86c03"),
    (15, 20): ("dff701150699e775688da9ab60595d69fb93f96679",
               "e0f781040207a76f464586869c2028903670556688bcbc460f"),
    (16, 16): ("df17020f04b490e8850f624549a6b799ac8a6a6fa7559007",
               "df07820d02077a79742aa9f97ca4fe27f36b58cf89867ab836"),
    (30, 2): ("9f28062182f9f9c403987687ef6998e073",
              "e0e781098277209692ef8777fef86b8777887777878808"),
    (1, 25): ("23e745390608878878878878f78672df88",
              "ddd7b91108990888877878f78e7c4f7808f78788878878"),
    (1, 1): ("eb5455c72a08f708888788708f7088f80888707ff8f7870f",
             "5c29b95d365508f78887707ff80888707ff808f78887707ff8"),
    (7, 3): ("dfe7052b8eca605523d2757ef2d88810c5",
             "61d785128617b5b59c8f79350f627cf5ee9d9f96578a87"),
}  # fmt: skip
#: The beginning of the hash of one colour; the rest is multiplied by zero.
PLAIN = {
    "red": "d5fb030700", "lime": "d50b000700", "blue": "1500020700", "white": "3f08020700",
    "black": "0008020700",
}  # fmt: skip


def hashed(image: Image.Image) -> bytes:
    return thumbhash(*image.size, image.convert("RGBA").tobytes())


def test_the_thumbhash_is_the_public_algorithm() -> None:
    for (width, height), hashes in RANDOM_PIXELS.items():
        for transparent, expected in enumerate(hashes):
            chance = random.Random(width * 100 + height + transparent)
            rgba = bytearray(chance.randrange(256) for _ in range(4 * width * height))
            if not transparent:
                rgba[3::4] = b"\xff" * (width * height)
            assert thumbhash(width, height, bytes(rgba)).hex() == expected
    for colour, expected in PLAIN.items():
        assert hashed(Image.new("RGB", (32, 32), colour))[:5].hex() == expected
    assert hashed(Image.new("RGBA", (9, 9), (1, 2, 3, 0)))[:6].hex() == "000882050000"
    for size in ((0, 5), (101, 5), (5, 101)):
        with pytest.raises(ValueError, match="has no hash"):
            thumbhash(*size, bytes(4 * size[0] * size[1]))


def test_the_thumbhash_is_of_the_image_as_stored(make: Make) -> None:
    found = base64.b64decode(make(photograph("jpeg", 6)).details["thumbhash"])
    expected = hashed(photos.scene().resize((64, 48), Image.Resampling.BOX))
    assert len(found) == len(expected)
    assert found[4] >> 7 == expected[4] >> 7 == 1  # landscape
    head, wanted = (int.from_bytes(data[:3], "little") for data in (found, expected))
    for shift in (0, 6, 12):  # mean light and colours, of 64 steps each
        assert abs((head >> shift & 63) - (wanted >> shift & 63)) <= 2
    assert make_placeholder(Image.new("RGB", (1, 5000))).dominant_color == "#000000"

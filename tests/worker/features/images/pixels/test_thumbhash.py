"""ThumbHash: equal to the public algorithm, and decodable to a similar picture."""

from __future__ import annotations

import base64
import random

import pytest
from PIL import Image

from tests.support.files import photos
from tests.support.files.pixels import Make
from worker.features.images.pixels.placeholder import make_placeholder, thumbhash

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
    (255, 0, 0): "d5fb030700",
    (0, 255, 0): "d50b000700",
    (0, 0, 255): "1500020700",
    (255, 255, 255): "3f08020700",
    (0, 0, 0): "0008020700",
}


def hashed(image: Image.Image) -> bytes:
    return thumbhash(*image.size, image.convert("RGBA").tobytes())


def test_it_is_the_public_algorithm() -> None:
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


def test_it_is_of_the_image_as_stored(make: Make) -> None:
    found = base64.b64decode(make(photos.photograph("jpeg", 6)).made.details["thumbhash"])
    expected = hashed(photos.harness().resize((64, 48), Image.Resampling.BOX))
    assert len(found) == len(expected)
    assert found[4] >> 7 == expected[4] >> 7 == 1  # landscape
    head, wanted = (int.from_bytes(data[:3], "little") for data in (found, expected))
    for shift in (0, 6, 12):  # mean light and colours, of 64 steps each
        assert abs((head >> shift & 63) - (wanted >> shift & 63)) <= 2
    assert make_placeholder(Image.new("RGB", (1, 5000))).dominant_color == "#000000"

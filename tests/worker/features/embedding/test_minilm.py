"""The numpy model gives the same vectors as sentence-transformers with the same weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.worker.features.embedding.kit import weights
from worker.features.embedding.factory import MAX_TOKENS
from worker.features.embedding.minilm import Array, MiniLM, Workspace, gelu
from worker.features.embedding.types import DamagedModel
from worker.features.embedding.wordpiece import WordPiece

#: Every 48th number of the vectors of sentence-transformers 6.2 on torch 2.13, and the sum of all
#: 384.
GOLDEN = {
    "A job is taken by one worker at a time.": (
        [-0.098691, 0.017512, 0.010043, 0.035873, 0.037461, 0.067813, 0.007767, 0.014936],
        -0.23262,
    ),
    "How do I stop a running job?": (
        [-0.019018, 0.02962, -0.01341, 0.009362, -0.02519, 0.061597, 0.106923, 0.069955],
        0.16692,
    ),
    "": (
        [-0.118838, 0.063324, 0.029042, 0.007964, -0.086478, 0.069688, -0.022747, -0.104721],
        0.62907,
    ),
    "Ünïcödé, naïve café — 東京は日本の首都です。": (
        [0.076897, -0.020655, -0.005747, 0.053988, -0.066813, 0.096264, -0.03255, -0.036592],
        -0.07922,
    ),
    "🙂 emoji [SEP] and [MASK]": (
        [-0.115744, -0.059836, 0.027896, 0.001137, 0.028696, 0.105218, -0.040465, 0.008098],
        0.0016,
    ),
    # Longer than the model's limit.
    "The quick brown fox jumps over the lazy dog. " * 60: (
        [0.062278, -0.063252, 0.057741, 0.025365, 0.120579, 0.087119, -0.047842, -0.031233],
        -0.47718,
    ),
    "def main() -> int:\n    return 0\n": (
        [0.060335, 0.073327, 0.00619, 0.105833, -0.135458, -0.057948, -0.102196, 0.079159],
        -0.08058,
    ),
    "١٢٣ عربى हिन्दी ไทย": (
        [0.001614, 0.077337, 0.002706, 0.02164, -0.051287, 0.052277, -0.0536, 0.025258],
        -0.36266,
    ),
}


class Reader:
    """Tokenizer and model."""

    def __init__(self, folder: Path) -> None:
        self.words = WordPiece.load(folder)
        self.model = MiniLM(folder)

    def __call__(self, *texts: str) -> Array:
        return self.model.embed([self.words.encode(text, MAX_TOKENS).ids for text in texts])


@pytest.fixture(scope="module")
def read() -> Reader:
    return Reader(weights())


def test_vectors_are_those_of_the_reference(read: Reader) -> None:
    for text, (numbers, total) in GOLDEN.items():
        [vector] = read(text)
        assert vector[::48] == pytest.approx(numbers, abs=2e-6), text
        assert vector.sum() == pytest.approx(total, abs=2e-5), text
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_other_texts_in_a_batch_make_no_difference(read: Reader) -> None:
    texts = sorted(GOLDEN, key=len)[:-1]
    together = read(*texts)
    for text, vector in zip(texts, together):
        assert vector == pytest.approx(read(text)[0], abs=1e-6)
    assert read(*reversed(texts))[::-1] == pytest.approx(together, abs=1e-6)


@pytest.mark.parametrize(
    ("question", "near", "far"),
    [
        ("How can I abort work that has begun?", "Cancel a running job.", "Bake a chocolate cake."),
        ("The box is too hot", "temperature limits", "a poem about the sea"),
        ("password", "secret credentials", "a green meadow"),
        ("kitten", "small cat", "steam engine"),
        ("Wie heißt die Hauptstadt von Japan?", "Tokyo, Japan", "database indexes"),
    ],
)
def test_similar_meanings_have_near_vectors(
    read: Reader, question: str, near: str, far: str
) -> None:
    asked, one, other = read(question, near, far)
    assert asked @ one > asked @ other + 0.1


def test_gelu_is_accurate_to_the_last_digit() -> None:
    x = np.linspace(-12, 12, 12_000, dtype=np.float32).reshape(-1, 30)
    wanted = [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x.ravel().tolist()]
    assert gelu(x.copy(), Workspace()).ravel() == pytest.approx(wanted, abs=1e-6)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = weights()
    whole = (folder / "model.safetensors").read_bytes()
    other = whole.replace(b'"shape":[30522,384]', b'"shape":[15261,768]')
    assert other != whole
    (tmp_path / "model.safetensors").write_bytes(other)
    with pytest.raises(DamagedModel, match=r"shape \[15261, 768\], not \[30522, 384\]"):
        MiniLM(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedModel, match="beyond the end"):
        MiniLM(tmp_path)

"""The model all-MiniLM-L6-v2 in numpy: six layers of BERT, the mean of all tokens, length one.

Importing this imports numpy; `worker.features.embedding.local` does so when the model is first
used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from worker.features.embedding.factory import DIMENSIONS, WEIGHTS_FILE
from worker.features.embedding.safetensors import TensorFile

#: Read once, when numpy is loaded: those of the libraries that it may be built with. Who has set
#: one of them knows why.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

_set_here = [name for name in THREAD_VARIABLES if name not in os.environ]
os.environ.update(dict.fromkeys(_set_here, "1"))
try:
    import numpy as np
    from numpy.typing import NDArray
finally:
    for _name in _set_here:  # not for the processes that we start
        del os.environ[_name]

__all__ = ["NDArray", "np"]


Array = NDArray[np.float32]

LAYERS: Final = 6
HEADS: Final = 12
HEAD_SIZE: Final = DIMENSIONS // HEADS
FEED_FORWARD: Final = 4 * DIMENSIONS
VOCABULARY: Final = 30_522
POSITIONS: Final = 512
EPSILON: Final = np.float32(1e-12)
#: Added to the scores of padding, so that nobody looks at it.
_MASKED: Final = np.float32(-1e9)
_SCALE: Final = np.float32(HEAD_SIZE**-0.5)
#: Abramowitz and Stegun 7.1.26: the error function to 1.5e-7.
#: Halved, and the scale of its argument taken in: the normal distribution wants x/√2.
_ERF: Final = tuple(
    np.float32(number / 2)
    for number in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
)
_ERF_P: Final = np.float32(0.3275911 * 0.5**0.5)
_HALF: Final = np.float32(0.5)
_ONE: Final = np.float32(1)
#: Rows of the wide step that are worked on together, and numbers in the scores of attention:
#: both fit a second-level cache, or nearly.
ROWS_AT_ONCE: Final = 16
SCORES_AT_ONCE: Final = 200_000


class Workspace:
    """Arrays that are used again for each batch: fresh memory costs more than what is done in it.

    It belongs to one model, and so to one thread.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def take(self, name: str, *shape: int) -> Array:
        """An array with anything in it, which the next `take` of that name overwrites."""
        size = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = self._arrays[name] = np.empty(size, dtype=np.float32)
        return array[:size].reshape(shape)


@dataclass(frozen=True)
class Dense:
    """A matrix, one column a result, and what is added to its product."""

    weight: Array
    bias: Array

    def __call__(self, x: Array, out: Array) -> Array:
        """The product, one row a token, in `out`."""
        np.matmul(x, self.weight, out=out)
        out += self.bias
        return out


@dataclass(frozen=True)
class Norm:
    """Brings each row to mean 0 and variance 1, then to what was learned."""

    weight: Array
    bias: Array

    def __call__(self, x: Array) -> Array:
        x -= x.mean(axis=-1, keepdims=True)
        variance = np.einsum("ti,ti->t", x, x)[:, None] / np.float32(DIMENSIONS)
        x *= np.float32(1) / np.sqrt(variance + EPSILON)
        x *= self.weight
        x += self.bias
        return x


@dataclass(frozen=True)
class Layer:
    """Attention, then a wide step for each token by itself."""

    query_key_value: Dense
    attention_output: Dense
    attention_norm: Norm
    feed_forward_in: Dense
    feed_forward_out: Dense
    norm: Norm

    def __call__(self, x: Array, padding: Array, space: Workspace) -> Array:
        """The next state of all tokens, in place of `x`."""
        tokens = len(x)
        parts = self.query_key_value(x, space.take("parts", tokens, 3 * DIMENSIONS))
        seen = _attend(parts, padding, space)
        x += self.attention_output(seen, space.take("change", tokens, DIMENSIONS))
        self.attention_norm(x)
        wide = gelu(self.feed_forward_in(x, space.take("wide", tokens, FEED_FORWARD)), space)
        x += self.feed_forward_out(wide, space.take("change", tokens, DIMENSIONS))
        return self.norm(x)


def _attend(parts: Array, padding: Array, space: Workspace) -> Array:
    """What each token sees in the others of its text."""
    texts, length = padding.shape
    shape = (texts, length, 3, HEADS, HEAD_SIZE)
    queries, keys, values = parts.reshape(shape).transpose(2, 0, 3, 1, 4)
    seen = space.take("seen", texts * length, DIMENSIONS)
    places = seen.reshape(texts, length, HEADS, HEAD_SIZE).transpose(0, 2, 1, 3)
    at_once = max(1, SCORES_AT_ONCE // (HEADS * length * length))
    for first in range(0, texts, at_once):
        some = slice(first, first + at_once)
        query, place = queries[some], places[some]
        scores = space.take("scores", len(query), HEADS, length, length)
        np.matmul(query, keys[some].swapaxes(-1, -2), out=scores)
        scores += padding[some, None, None, :]
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        np.matmul(scores, values[some], out=place)
        place /= scores.sum(axis=-1, keepdims=True)
    return seen


class MiniLM:
    """The whole model. One thread at a time; others run meanwhile, for numpy lets them."""

    def __init__(self, folder: Path) -> None:
        self._file = TensorFile(folder / WEIGHTS_FILE)
        self._word_embeddings = self._load_tensor(
            "embeddings.word_embeddings.weight", VOCABULARY, DIMENSIONS
        )
        places = self._load_tensor("embeddings.position_embeddings.weight", POSITIONS, DIMENSIONS)
        kinds = self._load_tensor("embeddings.token_type_embeddings.weight", 2, DIMENSIONS)
        #: There is one kind of text, so that its part is the same for all.
        self._position_embeddings: Array = places + kinds[0]
        self._norm = self._load_norm("embeddings.LayerNorm")
        self._layers = [self._load_layer(f"encoder.layer.{number}") for number in range(LAYERS)]
        self._workspace = Workspace()
        self._file.release_pages()

    def embed(self, batch: Sequence[Sequence[int]]) -> Array:
        """One row of length one for each text, given as its tokens."""
        lengths = np.array([len(ids) for ids in batch])
        longest = int(lengths.max())
        ids = np.zeros((len(batch), longest), dtype=np.int64)
        for row, text in zip(ids, batch):
            row[: len(text)] = text
        here = np.arange(longest) < lengths[:, None]
        padding: Array = np.where(here, np.float32(0), _MASKED)
        x: Array = (self._word_embeddings[ids] + self._position_embeddings[:longest]).reshape(
            -1, DIMENSIONS
        )
        self._norm(x)
        for layer in self._layers:
            layer(x, padding, self._workspace)
        tokens = x.reshape(len(batch), longest, DIMENSIONS)
        sums: Array = np.einsum("btd,bt->bd", tokens, here.astype(np.float32))
        sums /= np.linalg.norm(sums, axis=-1, keepdims=True)
        return sums

    def _load_layer(self, name: str) -> Layer:
        attention = f"{name}.attention"
        parts = [
            self._load_dense(f"{attention}.self.{part}", DIMENSIONS, DIMENSIONS)
            for part in ("query", "key", "value")
        ]
        # One product instead of three, and the scale of the scores at no cost.
        parts[0] = Dense(parts[0].weight * _SCALE, parts[0].bias * _SCALE)
        looking = Dense(
            np.concatenate([part.weight for part in parts], axis=1),
            np.concatenate([part.bias for part in parts]),
        )
        return Layer(
            looking,
            self._load_dense(f"{attention}.output.dense", DIMENSIONS, DIMENSIONS),
            self._load_norm(f"{attention}.output.LayerNorm"),
            self._load_dense(f"{name}.intermediate.dense", FEED_FORWARD, DIMENSIONS),
            self._load_dense(f"{name}.output.dense", DIMENSIONS, FEED_FORWARD),
            self._load_norm(f"{name}.output.LayerNorm"),
        )

    def _load_dense(self, name: str, out: int, into: int) -> Dense:
        # Turned round: the product with few rows, which is a query's, then takes a third less.
        weight = np.ascontiguousarray(self._load_tensor(f"{name}.weight", out, into).T)
        return Dense(weight, self._load_tensor(f"{name}.bias", out))

    def _load_norm(self, name: str) -> Norm:
        weight, bias = (
            self._load_tensor(f"{name}.{part}", DIMENSIONS) for part in ("weight", "bias")
        )
        return Norm(weight, bias)

    def _load_tensor(self, name: str, *shape: int) -> Array:
        tensor = self._file.find(name, *shape)
        data: Any = self._file.data
        return np.frombuffer(
            data, dtype="<f4", count=tensor.size, offset=tensor.offset_bytes
        ).reshape(shape)


def gelu(x: Array, space: Workspace) -> Array:
    """`x · Φ(x)`, with Φ of the normal distribution; in place, a few rows at a time."""
    for first in range(0, len(x), ROWS_AT_ONCE):
        rows = x[first : first + ROWS_AT_ONCE]
        density, t, tail = space.take("gelu", 3, *rows.shape)
        np.abs(rows, out=t)
        np.square(t, out=density)
        density *= -_HALF
        np.exp(density, out=density)
        t *= _ERF_P
        t += _ONE
        np.reciprocal(t, out=t)
        np.multiply(t, _ERF[0], out=tail)
        for number in _ERF[1:]:
            tail += number
            tail *= t
        tail *= density
        tail *= np.abs(rows, out=t)
        # Now |x| times the mass beyond |x|: x ≥ 0 loses it, x < 0 has nothing else.
        np.maximum(rows, 0, out=rows)
        rows -= tail
    return x

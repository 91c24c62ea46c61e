"""all-MiniLM-L6-v2 in numpy: six BERT layers, mean pooling, vectors of length one.

Importing this module imports numpy; `sluice.worker.features.embedding.local` does so when the
model is first used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluice.worker.features.embedding.factory import DIMENSIONS, WEIGHTS_FILE
from sluice.worker.features.embedding.safetensors import TensorFile

#: Thread counts of the BLAS libraries that numpy may use, read once when numpy is loaded. A value
#: set by the operator is kept.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

_set_here = [name for name in THREAD_VARIABLES if name not in os.environ]
os.environ.update(dict.fromkeys(_set_here, "1"))
try:
    import numpy as np
    from numpy.typing import NDArray
finally:
    for _name in _set_here:  # child processes must not inherit them
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
#: Added to the attention scores of padding, so that it gets no weight.
_MASKED: Final = np.float32(-1e9)
_SCALE: Final = np.float32(HEAD_SIZE**-0.5)
#: Error function after Abramowitz and Stegun 7.1.26, accurate to 1.5e-7. Coefficients are halved
#: and the argument is scaled by 1/√2, to give the normal distribution.
_ERF: Final = tuple(
    np.float32(number / 2)
    for number in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
)
_ERF_P: Final = np.float32(0.3275911 * 0.5**0.5)
_HALF: Final = np.float32(0.5)
_ONE: Final = np.float32(1)
#: Rows processed at a time in the feed-forward step, and entries of the attention scores. Both
#: roughly fit a second-level cache.
ROWS_AT_ONCE: Final = 16
SCORES_AT_ONCE: Final = 200_000


class Workspace:
    """Arrays reused between batches, because allocating memory costs more than the computation.

    A workspace belongs to one model and therefore to one thread.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def take(self, name: str, *shape: int) -> Array:
        """An uninitialised array; the next `take` with the same name overwrites it."""
        size = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = self._arrays[name] = np.empty(size, dtype=np.float32)
        return array[:size].reshape(shape)


@dataclass(frozen=True)
class Dense:
    """Weight matrix (one column per output) and bias."""

    weight: Array
    bias: Array

    def __call__(self, x: Array, out: Array) -> Array:
        """Write the product, one row per token, to `out`."""
        np.matmul(x, self.weight, out=out)
        out += self.bias
        return out


@dataclass(frozen=True)
class Norm:
    """Layer normalisation: mean 0 and variance 1 per row, then the learned scale and bias."""

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
    """One transformer layer: attention, then the feed-forward step for each token."""

    query_key_value: Dense
    attention_output: Dense
    attention_norm: Norm
    feed_forward_in: Dense
    feed_forward_out: Dense
    norm: Norm

    def __call__(self, x: Array, padding: Array, space: Workspace) -> Array:
        """Update the states of all tokens in `x`."""
        tokens = len(x)
        parts = self.query_key_value(x, space.take("parts", tokens, 3 * DIMENSIONS))
        attended = _attend(parts, padding, space)
        x += self.attention_output(attended, space.take("change", tokens, DIMENSIONS))
        self.attention_norm(x)
        wide = gelu(self.feed_forward_in(x, space.take("wide", tokens, FEED_FORWARD)), space)
        x += self.feed_forward_out(wide, space.take("change", tokens, DIMENSIONS))
        return self.norm(x)


def _attend(parts: Array, padding: Array, space: Workspace) -> Array:
    """Self-attention of each token over the tokens of its text."""
    texts, length = padding.shape
    shape = (texts, length, 3, HEADS, HEAD_SIZE)
    queries, keys, values = parts.reshape(shape).transpose(2, 0, 3, 1, 4)
    attended = space.take("attended", texts * length, DIMENSIONS)
    outputs = attended.reshape(texts, length, HEADS, HEAD_SIZE).transpose(0, 2, 1, 3)
    at_once = max(1, SCORES_AT_ONCE // (HEADS * length * length))
    for first in range(0, texts, at_once):
        some = slice(first, first + at_once)
        query, output = queries[some], outputs[some]
        scores = space.take("scores", len(query), HEADS, length, length)
        np.matmul(query, keys[some].swapaxes(-1, -2), out=scores)
        scores += padding[some, None, None, :]
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        np.matmul(scores, values[some], out=output)
        output /= scores.sum(axis=-1, keepdims=True)
    return attended


class MiniLM:
    """The whole model.

    Use it from one thread at a time; numpy releases the GIL while it computes.
    """

    def __init__(self, folder: Path) -> None:
        self._file = TensorFile(folder / WEIGHTS_FILE)
        self._word_embeddings = self._load_tensor(
            "embeddings.word_embeddings.weight", VOCABULARY, DIMENSIONS
        )
        positions = self._load_tensor(
            "embeddings.position_embeddings.weight", POSITIONS, DIMENSIONS
        )
        kinds = self._load_tensor("embeddings.token_type_embeddings.weight", 2, DIMENSIONS)
        #: All texts have token type 0, so its embedding is added to each position.
        self._position_embeddings: Array = positions + kinds[0]
        self._norm = self._load_norm("embeddings.LayerNorm")
        self._layers = [self._load_layer(f"encoder.layer.{number}") for number in range(LAYERS)]
        self._workspace = Workspace()
        self._file.release_pages()

    def embed(self, batch: Sequence[Sequence[int]]) -> Array:
        """One row of length one per text; texts are given as token ids."""
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
        # One matrix product instead of three; the scale of the scores is folded into the query.
        parts[0] = Dense(parts[0].weight * _SCALE, parts[0].bias * _SCALE)
        query_key_value = Dense(
            np.concatenate([part.weight for part in parts], axis=1),
            np.concatenate([part.bias for part in parts]),
        )
        return Layer(
            query_key_value,
            self._load_dense(f"{attention}.output.dense", DIMENSIONS, DIMENSIONS),
            self._load_norm(f"{attention}.output.LayerNorm"),
            self._load_dense(f"{name}.intermediate.dense", FEED_FORWARD, DIMENSIONS),
            self._load_dense(f"{name}.output.dense", DIMENSIONS, FEED_FORWARD),
            self._load_norm(f"{name}.output.LayerNorm"),
        )

    def _load_dense(self, name: str, out: int, into: int) -> Dense:
        # Transposed: a product with few rows, as for a query, is then a third faster.
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
    """`x · Φ(x)`, where Φ is the normal distribution function; in place, a few rows at a time."""
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
        # `tail` is now |x| times the mass beyond |x|: subtract it for x ≥ 0; for x < 0 it is the
        # result, negated.
        np.maximum(rows, 0, out=rows)
        rows -= tail
    return x

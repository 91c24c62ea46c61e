"""`make sbom`: writes a software bill of materials, in CycloneDX JSON, of what a host installs.

The components are the packages of `deploy/requirements.lock` with their hashes. Licences come from
the metadata of the packages that are installed in the same version; others have none.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from sluice.common.version import VERSION

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "deploy" / "requirements.lock"
SPEC_VERSION = "1.5"
NAME = "sluice"
#: Not `pkg:pypi/sluice`, which is an unrelated package.
OWN_PURL = f"pkg:generic/{NAME}@{VERSION}"
#: Property with the condition under which a package is installed.
MARKER = "sluice:marker"
#: Values of the metadata field `License` that are SPDX identifiers.
SPDX = ("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT")
_CLASSIFIER = "License :: OSI Approved :: "
_ENTRY = re.compile(r"(?P<name>[\w.-]+)==(?P<version>\S+)(?: ; (?P<marker>.*?))? \\$", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_REQUIREMENT = re.compile(r"[\w.-]+")


class Locked(NamedTuple):
    """One package of the lock file."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def main(words: list[str]) -> int:
    from tools.distribution import BuildError, build_time

    try:
        print(write(Path(words[0] if words else "dist"), build_time()))
    except BuildError as error:
        print(f"make sbom: {error}", file=sys.stderr)
        return 1
    return 0


def write(target: Path, epoch: int) -> Path:
    """Write the file into a directory; `epoch` is its time in seconds."""
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"{NAME}-{VERSION}.cdx.json"
    path.write_text(json.dumps(document(LOCK.read_text(), epoch), indent=2) + "\n")
    return path


def document(lock: str, epoch: int) -> dict[str, Any]:
    packages = sorted(locked(lock))
    content = {
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": OWN_PURL,
                "name": NAME,
                "version": VERSION,
                "licenses": [{"expression": "MIT"}],
                "purl": OWN_PURL,
            },
        },
        "components": [component(package) for package in packages],
        "dependencies": [{"ref": OWN_PURL, "dependsOn": direct(packages)}],
    }
    # The same content has the same number.
    number = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(content, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        **content,
    }


def locked(lock: str) -> Iterator[Locked]:
    """The entries of a lock file; a package may have several, with different conditions."""
    for entry in re.split(r"\n(?=\S)", lock.strip()):
        match = _ENTRY.match(entry)
        hashes = tuple(sorted(_HASH.findall(entry)))
        if match is None or not hashes:
            raise ValueError(f"{LOCK.name}: no version or hash in {entry.splitlines()[0]!r}")
        yield Locked(match["name"], match["version"], match["marker"] or "", hashes)


def component(package: Locked) -> dict[str, Any]:
    """A package; its hashes are those of all its files, for every platform."""
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
    }
    if licences := licences_of(package):
        found["licenses"] = licences
    found["purl"] = package.purl
    if package.marker:
        found["properties"] = [{"name": MARKER, "value": package.marker}]
    return found


def licences_of(package: Locked) -> list[dict[str, Any]]:
    try:
        about = metadata.metadata(package.name)
    except metadata.PackageNotFoundError:
        return []
    if about["Version"] != package.version:
        return []
    if expression := about.get("License-Expression"):
        return [{"expression": expression}]
    text = (about.get("License") or "").strip()
    if text in SPDX:
        return [{"license": {"id": text}}]
    names = [
        value.removeprefix(_CLASSIFIER)
        for value in about.get_all("Classifier") or []
        if value.startswith(_CLASSIFIER)
    ]
    if not names and text and "\n" not in text:
        names = [text]
    return [{"license": {"name": name}} for name in sorted(names)]


def direct(packages: list[Locked]) -> list[str]:
    """References of the packages that Sluice itself requires, with or without an extra."""
    words = [_REQUIREMENT.match(text) for text in metadata.requires(NAME) or []]
    required = {_normal(word[0]) for word in words if word is not None}
    return [package.purl for package in packages if _normal(package.name) in required]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

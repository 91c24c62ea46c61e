"""The SBOM: the members that CycloneDX requires, and the packages of the lock file."""

from __future__ import annotations

import json
import re
from datetime import datetime
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from sluice.common.version import VERSION
from tools import sbom

EPOCH = 1_700_000_000
LOCK = sbom.LOCK.read_text()
#: Values that the schema of CycloneDX 1.5 allows; the file uses no others.
COMPONENT_TYPES = {"application", "library"}
MEMBERS = {"bomFormat", "specVersion", "serialNumber", "version"}
MEMBERS |= {"metadata", "components", "dependencies"}
COMPONENT_MEMBERS = {"type", "bom-ref", "name", "version", "hashes", "licenses", "purl"}
COMPONENT_MEMBERS |= {"properties"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(sbom.document(LOCK, EPOCH)))
    return found


def test_the_document_has_the_required_members(document: dict[str, Any]) -> None:
    assert set(document) == MEMBERS
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    number = r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    assert re.fullmatch(number, document["serialNumber"])
    assert document["version"] == 1
    about = document["metadata"]
    assert set(about) == {"timestamp", "component"}
    assert datetime.strptime(about["timestamp"], "%Y-%m-%dT%H:%M:%SZ")
    assert about["component"]["name"] == "sluice"
    assert about["component"]["version"] == VERSION


def test_each_component_is_valid(document: dict[str, Any]) -> None:
    components = [document["metadata"]["component"], *document["components"]]
    for component in components:
        assert set(component) <= COMPONENT_MEMBERS
        assert component["type"] in COMPONENT_TYPES
        assert component["name"]
        assert component["version"]
        kind = "generic" if component["name"] == "sluice" else "pypi"
        assert component["purl"] == f"pkg:{kind}/{component['name']}@{component['version']}"
        for digest in component.get("hashes", []):
            assert set(digest) == {"alg", "content"}
            assert digest["alg"] == "SHA-256"
            assert re.fullmatch("[0-9a-f]{64}", digest["content"])
        assert_licences_are_valid(component.get("licenses", []))
        for property_ in component.get("properties", []):
            assert set(property_) == {"name", "value"}
    references = [component["bom-ref"] for component in components]
    assert len(references) == len(set(references))


def assert_licences_are_valid(licences: list[dict[str, Any]]) -> None:
    """Either one expression, or licences with an SPDX identifier or a name."""
    if any("expression" in licence for licence in licences):
        assert len(licences) == 1
        assert set(licences[0]) == {"expression"}
        return
    for licence in licences:
        assert set(licence) == {"license"}
        assert len(licence["license"]) == 1
        assert set(licence["license"]) <= {"id", "name"}


def test_the_components_are_those_of_the_lock_file(document: dict[str, Any]) -> None:
    pinned = re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE)
    found = [(component["name"], component["version"]) for component in document["components"]]
    assert sorted(found) == sorted(pinned)
    hashes = sum(len(component["hashes"]) for component in document["components"])
    assert hashes == LOCK.count("--hash=sha256:")
    markers = [
        component["properties"] for component in document["components"] if "properties" in component
    ]
    assert len(markers) == LOCK.count(" ; ")


def test_direct_dependencies_are_components(document: dict[str, Any]) -> None:
    [root] = document["dependencies"]
    assert root["ref"] == document["metadata"]["component"]["bom-ref"]
    references = {component["bom-ref"] for component in document["components"]}
    assert set(root["dependsOn"]) < references
    names = {
        reference.removeprefix("pkg:pypi/").partition("@")[0] for reference in root["dependsOn"]
    }
    assert {"fastapi", "redis", "httpx2"} <= names
    assert "starlette" not in names


def test_the_same_content_gives_the_same_file(tmp_path: Path) -> None:
    first, second = (sbom.write(tmp_path / name, EPOCH).read_bytes() for name in ("one", "two"))
    assert first == second
    reordered = "\n".join(reversed(re.split(r"\n(?=\S)", LOCK.strip())))
    assert sbom.document(reordered, EPOCH) == sbom.document(LOCK, EPOCH)
    assert sbom.document(LOCK, EPOCH + 1)["serialNumber"] != json.loads(first)["serialNumber"]


def test_the_file_names_no_host(tmp_path: Path) -> None:
    assert "://" not in sbom.write(tmp_path, EPOCH).read_text()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"License-Expression": "MIT OR Apache-2.0"}, [{"expression": "MIT OR Apache-2.0"}]),
        ({"License": "BSD-3-Clause"}, [{"license": {"id": "BSD-3-Clause"}}]),
        ({"License": "Some Licence"}, [{"license": {"name": "Some Licence"}}]),
        (
            {"License": "text\nof it", "Classifier": "License :: OSI Approved :: BSD License"},
            [{"license": {"name": "BSD License"}}],
        ),
        ({"License": "text\nof it"}, []),
        ({}, []),
        ({"License-Expression": "MIT", "Version": "2"}, []),  # of another version
    ],
)
def test_licences_come_from_the_installed_version(
    fields: dict[str, str], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = Message()
    for name, value in {"Version": "1", **fields}.items():
        message[name] = value
    monkeypatch.setattr("tools.sbom.metadata.metadata", lambda name: message)
    assert sbom.licences_of(sbom.Locked("a", "1", "", ("0" * 64,))) == expected


def test_a_package_that_is_not_installed_has_no_licence() -> None:
    assert sbom.licences_of(sbom.Locked("no-such-package", "1", "", ())) == []


@pytest.mark.parametrize("lock", ["fastapi>=1 \\\n    --hash=sha256:" + "0" * 64, "fastapi==1 \\"])
def test_an_entry_without_version_or_hash_is_refused(lock: str) -> None:
    with pytest.raises(ValueError, match="no version or hash in 'fastapi"):
        sbom.document(lock, EPOCH)

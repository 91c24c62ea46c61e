"""Third-party files of the dashboard are unchanged."""

from __future__ import annotations

import hashlib
import re

from sluice.gateway.dashboard.static_files import STATIC

VENDOR = STATIC / "vendor"
#: The line that Sluice adds to make the script a module.
EXPORT = b"export default uPlot;\n"


def test_digests_match_the_package() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` .*\| `([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), re.MULTILINE
    )
    assert {name for name, _ in rows} == {"uPlot.js", "uPlot_min.css"}
    for name, digest in rows:
        content = (VENDOR / name).read_bytes()
        if name.endswith(".js"):
            assert content.endswith(EXPORT)
            content = content.removesuffix(EXPORT)
        assert hashlib.sha256(content).hexdigest() == digest


def test_the_vendored_library_has_its_licence_and_version() -> None:
    assert "MIT" in (VENDOR / "uPlot_LICENSE").read_text()
    assert "1.6.32" in (VENDOR / "uPlot.js").read_text()[:200]

"""Settings of the host that an aarch64 Debian needs: network, certificates, pip's index."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

#: Variables that programs need to reach the network. Variables of pip are read by pip itself.
_NETWORK = re.compile(r"(?i)^((http|https|ftp|all|no)_proxy|(ssl|curl|requests)_.*(file|bundle))$")
RESOLVER = Path("/etc/resolv.conf")


def network_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _NETWORK.match(name)}


def pip_settings() -> dict[str, dict[str, str]]:
    """Settings of the host's pip, from its files and variables, by section."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sections: dict[str, dict[str, str]] = {}
    for line in listed.splitlines():
        name, _, quoted = line.partition("=")
        section, _, key = name.rpartition(".")
        # Variables come first in the list, and they override files.
        section = "global" if section == ":env:" else section
        if key == "config-file":  # its settings are in the list
            continue
        value = " ".join(quoted[1:-1].replace("\\n", " ").split())
        sections.setdefault(section, {}).setdefault(key, value)
    return sections


def write_pip_settings(path: Path, settings: dict[str, dict[str, str]]) -> None:
    parser = configparser.RawConfigParser()
    parser.read_dict(settings)
    with path.open("w") as file:
        parser.write(file)


def paths_of(values: list[str]) -> set[Path]:
    """Files and directories of this host that settings name, as paths or file URLs."""
    words = [word.removeprefix("file://") for value in values for word in value.split()]
    found = {Path(word) for word in words if word.startswith("/") and Path(word).exists()}
    # An index refers to files next to its own directory, such as ../../files/.
    return {path.parent if path.name == "simple" else path for path in found}

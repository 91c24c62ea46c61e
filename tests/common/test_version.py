"""The version of Sluice; versions of Redis and Valkey, and whose files they can read."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

import pytest

from deploy.installer.sources import Sources
from sluice.common.version import (
    REDIS,
    VALKEY,
    VERSION,
    ServerVersion,
    parse_banner,
    reported_version,
)


def redis(*numbers: int) -> ServerVersion:
    return ServerVersion(REDIS, numbers)


def valkey(*numbers: int) -> ServerVersion:
    return ServerVersion(VALKEY, numbers)


def test_package_and_installer_have_the_version_of_the_code() -> None:
    assert metadata.version("sluice") == VERSION == Sources().version


def test_file_names_in_the_documentation_have_the_version() -> None:
    text = (Sources().checkout / "docs" / "installation.md").read_text()
    assert set(re.findall(r"sluice-(\d+\.\d+\.\d+)", text)) == {VERSION}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", redis(7, 0, 15)),
        ("Valkey server v=9.1.0 sha=00000000:0 malloc=jemalloc-5.3.1 bits=64", valkey(9, 1, 0)),
        ("v=10.2.0", redis(10, 2, 0)),
        ("hello", None),
        ("", None),
    ],
)
def test_the_banner_names_product_and_version(text: str, found: ServerVersion | None) -> None:
    assert parse_banner(text) == found


@pytest.mark.parametrize(
    ("info", "found"),
    [
        ({"redis_version": "8.6.3"}, (REDIS, "8.6.3")),
        (
            {"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.0"},
            (VALKEY, "9.1.0"),
        ),
        ({}, (REDIS, "")),
    ],
)
def test_info_names_product_and_version(info: dict[str, Any], found: tuple[str, str]) -> None:
    assert reported_version(info) == found


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        (redis(6, 0, 16), False),
        (redis(6, 2, 0), True),
        (redis(10, 0, 0), True),
        (valkey(7, 2, 5), True),
    ],
)
def test_versions_before_6_2_are_not_supported(version: ServerVersion, supported: bool) -> None:
    assert version.is_supported is supported


@pytest.mark.parametrize(
    ("reader", "writer", "readable"),
    [
        (redis(7, 0, 15), redis(6, 2, 14), True),
        (redis(7, 0, 15), redis(7, 0, 20), True),
        (redis(7, 0, 15), redis(7, 2, 0), False),
        (valkey(9, 1, 2), redis(6, 2, 14), True),
        (valkey(9, 1, 2), redis(7, 2, 4), True),
        (valkey(9, 1, 2), redis(7, 4, 0), False),
        (valkey(9, 1, 2), redis(8, 6, 3), False),
        (redis(8, 6, 3), valkey(7, 2, 5), True),
        (redis(7, 0, 15), valkey(7, 2, 5), False),
        (redis(10, 0, 0), valkey(9, 1, 2), False),
        (valkey(9, 1, 2), valkey(8, 0, 0), True),
        (valkey(8, 1, 0), valkey(9, 0, 0), False),
    ],
    ids=str,
)
def test_files_are_common_up_to_7_2(
    reader: ServerVersion, writer: ServerVersion, readable: bool
) -> None:
    assert reader.can_read(writer) is readable


def test_the_text_names_the_product() -> None:
    assert str(valkey(9, 1, 0)) == "Valkey 9.1.0"

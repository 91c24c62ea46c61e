"""Allowed destinations of webhooks: all notations of private addresses are recognised."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import SettingsError
from common.features.workflows.webhooks.hosts import (
    AllowedHosts,
    WebhookRefused,
    check_url,
    is_public,
)
from common.settings.base import load_settings
from common.settings.worker import WorkerSettings

NOBODY = AllowedHosts()
INWARD = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254"),
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1"),
    *("198.18.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1"),
    *("255.255.255.255", "192.88.99.1"),
    *(
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:db8::1",
        "2002:7f00:1::",
    ),
    *("2001::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::10.0.0.1"),
    *("64:ff9b:1::1", "100::1", "3fff::1", "fec0::1", "5f00::1"),
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "100.63.255.255", "172.32.0.1", "2606:4700:4700::1111"]
PUBLIC += ["::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("text", INWARD)
def test_private_addresses_are_refused_in_any_notation(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert not is_public(address)
    assert not NOBODY.allows("example.com", address)
    host = f"[{text}]" if ":" in text else text
    with pytest.raises(WebhookRefused, match=r"is not a public address; .* add "):
        check_url(f"http://{host}/", NOBODY)


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_allowed(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))
    host = f"[{text}]" if ":" in text else text
    assert check_url(f"https://{host}:8443/", NOBODY).port == 8443


@pytest.mark.parametrize(
    "url",
    ["http://2130706433/", "http://0x7f000001/", "http://0x7f.0.0.1/", "http://017700000001/",
     "http://0177.0.0.1/", "http://127.1/", "http://127.0.1/", "http://127.0.0.1.2/",
     "http://1.2.3.256/", "http://example.0x1/", "http://example.1/", "http://0/",
     "http://127.0.0.01/", "http://１２７.0.0.1/", "http://127.0.0.1%2f@x/",
     "http://[::1%25lo]/", "http://[fe80::1%25eth0]/", "http://[127.0.0.1]/", "http://[::1]x/",
     "http://x@127.0.0.1/", "http://a:b@example.com/", "http://example.com\\@127.0.0.1/",
     "http://exam ple.com/", "http://example.com/\n", "http://example.com/\x00", "http://bücher.de/",
     "ftp://example.com/", "file:///etc/passwd", "gopher://x/", "//example.com/", "example.com",
     "http://", "http:///x", "http://-a/", "http://a..b/", "http://.a/", "http://a:0/",
     "http://a:99999/", "http://a:x/", "http://example.com/#top", "http://" + "a" * 64 + ".com/",
     "https://example.com/" + "x" * 2048, "http://[::1/", "http://%6c%6fcalhost/"],
)  # fmt: skip
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(WebhookRefused):
        check_url(url, AllowedHosts.parse("127.0.0.1,localhost,::1,example.com"))


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [("https://Example.com", "example.com", "/"),
     ("https://example.com.:443/a/b?c=d&e", "example.com", "/a/b?c=d&e"),
     ("http://example.com:8080/?", "example.com:8080", "/"),
     ("http://example.com:80/x;y=1", "example.com", "/x;y=1"),
     ("http://a_b.xn--bcher-kva.example/", "a_b.xn--bcher-kva.example", "/"),
     ("http://[2606:4700:4700:0::1111]:81/", "[2606:4700:4700::1111]:81", "/")],
)  # fmt: skip
def test_parts_of_a_url(url: str, authority: str, path: str) -> None:
    target = check_url(url, NOBODY)
    assert (target.authority, target.path) == (authority, path)
    assert target.origin == f"{target.scheme}://{authority}"


def test_hosts_are_allowed_by_address_network_and_name() -> None:
    allowed = AllowedHosts.parse(" 127.0.0.1, hooks.LAN. ,192.168.1.0/24,[fd00::1]")
    assert check_url("http://127.0.0.1:9/", allowed).host == "127.0.0.1"
    assert check_url("http://[fd00::1]/", allowed).host == "fd00::1"
    for url in ("http://127.0.0.2/", "http://192.168.2.1/", "http://10.0.0.1/"):
        with pytest.raises(WebhookRefused):
            check_url(url, allowed)
    private, linked = ipaddress.ip_address("10.1.2.3"), ipaddress.ip_address("169.254.169.254")
    assert allowed.allows("hooks.lan", private)
    assert allowed.allows("hooks.lan", ipaddress.ip_address("127.0.0.1"))
    assert allowed.allows("hooks.lan", ipaddress.ip_address("8.8.8.8"))
    assert allowed.allows("any.example", ipaddress.ip_address("::ffff:192.168.1.7"))
    assert not allowed.allows("other.lan", private)
    # A name never leads to cloud metadata addresses, even an allowed one: that needs the address.
    assert not allowed.allows("hooks.lan", linked)
    assert AllowedHosts.parse("169.254.169.254").allows("hooks.lan", linked)


@pytest.mark.parametrize(
    "url", ["http://localhost:9/", "https://LOCALHOST/", "http://a.localhost/"]
)
def test_names_of_this_machine_are_refused_at_once(url: str) -> None:
    with pytest.raises(WebhookRefused, match="not a public address"):
        check_url(url, NOBODY)
    assert check_url(url, AllowedHosts.parse("127.0.0.0/8"))
    assert check_url("http://localhost/", AllowedHosts.parse("localhost"))


def test_one_bad_address_among_good_ones_is_enough() -> None:
    addresses = [ipaddress.ip_address(text) for text in ("8.8.8.8", "10.0.0.1")]
    with pytest.raises(WebhookRefused, match=r"example\.com is 10\.0\.0\.1, which is not a public"):
        NOBODY.check("example.com", addresses)


@pytest.mark.parametrize("text", ["10.0.0.0/99", "127.1", "a b", "http://x/", "hooks.lan:80", "-"])
def test_a_wrong_setting_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKFLOW_WEBHOOK_ALLOWED_HOSTS", text)
    with pytest.raises(SettingsError, match=r"WORKFLOW_WEBHOOK_ALLOWED_HOSTS.*write them like"):
        load_settings(WorkerSettings)


@given(st.text(max_size=60))
def test_any_url_is_allowed_or_refused(text: str) -> None:
    for url in (text, f"http://{text}", f"https://{text}/"):
        try:
            target = check_url(url, NOBODY)
        except WebhookRefused:
            continue
        assert target.address is None or is_public(target.address)
        assert target.scheme in ("http", "https")

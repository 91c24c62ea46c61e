"""The dashboard's files: served whole, tagged, under the strictest policy, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.dashboard.static_files import STATIC, FileCache
from tests.gateway.conftest import Gateway, Make, check_problem
from tests.gateway.http.openapi.test_docs_page import Page
from tests.gateway.http.test_headers import check_strict

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
#: Uncompressed, of everything that the overview loads.
MOST_BYTES = 150_000


@pytest.mark.parametrize("target", ["/ui", "/ui/", "/ui/jobs", "/ui/jobs/a%2Fb", "/ui/no/such"])
async def test_every_page_is_the_same_shell(fake_gateway: Gateway, target: str) -> None:
    answer = await fake_gateway.client.get(target)
    assert answer.status == 200
    assert answer.header("content-type") == "text/html; charset=utf-8"
    assert answer.body == (STATIC / "index.html").read_bytes()
    check_strict(answer, POLICY)
    assert answer.header("cross-origin-opener-policy") == "same-origin"
    assert answer.header("permissions-policy")


async def test_nobody_needs_a_key_for_it_and_there_is_nothing_in_it(fake_make: Make) -> None:
    gateway = fake_make(auth="required")
    for target in ("/ui", "/ui/static/app.js"):
        assert (await gateway.client.get(target)).status == 200


async def test_the_shell_brings_no_script_or_style_of_its_own(fake_gateway: Gateway) -> None:
    html = (await fake_gateway.client.get("/ui")).body.decode()
    page = Page(re.sub(r"<link([^>]*)>", r"<link\1></link>", html))
    assert "style" not in page.tags
    assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")]
    assert not re.findall(r"<script[^>]*>[^<]", html)
    for name, value in page.attributes:
        if name in ("src", "href"):
            assert value.startswith("/")


def static_files() -> list[str]:
    served = {".js", ".css", ".svg", ".html"}
    return sorted(
        str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.suffix in served
    )


@pytest.mark.parametrize("name", [name for name in static_files() if name != "index.html"])
async def test_every_file_is_served_as_what_it_is(fake_gateway: Gateway, name: str) -> None:
    answer = await fake_gateway.client.get(f"/ui/static/{name}")
    assert answer.status == 200
    assert answer.body == (STATIC / name).read_bytes()
    kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert (answer.header("content-type") or "").startswith(kind[name.rpartition(".")[2]])
    check_strict(answer, POLICY)


@pytest.mark.parametrize("name", [name for name in static_files() if name.endswith(".js")])
def test_no_text_can_become_markup(name: str) -> None:
    if name.startswith("vendor/"):
        return
    source = (STATIC / name).read_text()
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "srcdoc",
    ):
        assert way not in source, f"{name} has {way}"
    assert not re.search(r'(?: from |import\(|fetch\(|Source\()"(?![./])', source)


async def test_what_has_not_changed_is_not_sent_again(fake_gateway: Gateway) -> None:
    first = await fake_gateway.client.get("/ui/static/app.js")
    tag = first.header("etag") or ""
    for known in (tag, f'"other", {tag}', "*"):
        again = await fake_gateway.client.get("/ui/static/app.js", {"if-none-match": known})
        assert (again.status, again.body) == (304, b"")
        assert again.header("etag") == tag
    other = await fake_gateway.client.get("/ui/static/app.js", {"if-none-match": '"other"'})
    assert other.status == 200


async def test_a_head_is_like_its_get(fake_gateway: Gateway) -> None:
    answer = await fake_gateway.client.send("HEAD", "/ui/static/app.js")
    assert answer.status == 200
    assert answer.header("etag")


@pytest.mark.parametrize(
    "name",
    [
        *("nothing.js", "index.html", "pages", "pages/", "", "app.js/", "vendor/README.md"),
        *(
            "../static_files.py",
            "..%2Fstatic_files.py",
            "%2e%2e/static_files.py",
            "pages/../app.js",
            "pages/../../x.js",
        ),
        *(
            "/etc/passwd",
            "%2Fetc%2Fpasswd",
            "app.js%00",
            "a\\..\\b.js",
            "vendor//x.js",
            "pages/jobs",
            "pages/jobs/",
            "pages/jobs/../overview.js",
            "a/b/c/d.js",
        ),
        "a" * 3000 + ".js",
    ],
)
async def test_no_other_file_is_there(fake_gateway: Gateway, name: str) -> None:
    check_problem(await fake_gateway.client.get(f"/ui/static/{name}"), 404)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    files = FileCache(tmp_path)
    assert files.get("x.js") is None
    (tmp_path / "x.js").write_text("one")
    first = files.get("x.js")
    assert first is not None
    assert files.get("x.js") is first, "not read twice"
    (tmp_path / "x.js").write_text("another")
    second = files.get("x.js")
    assert second is not None
    assert (second.content, first.content) == (b"another", b"one")
    assert second.etag != first.etag


async def test_browsers_are_sent_from_the_root(fake_gateway: Gateway) -> None:
    page = await fake_gateway.client.get("/", {"accept": "text/html,*/*"})
    assert (page.status, page.header("location")) == (302, "/ui")
    check_problem(await fake_gateway.client.get("/"), 404)


async def test_it_can_be_left_out(fake_make: Make) -> None:
    gateway = fake_make(dashboard="off")
    for target in ("/", "/ui", "/ui/jobs", "/ui/static/app.js", "/ui/session"):
        check_problem(await gateway.client.get(target, {"accept": "text/html"}), 404)


def imports_of(name: str, seen: set[str]) -> set[str]:
    """A module and all it imports at once, by their names below static."""
    if name not in seen:
        seen.add(name)
        folder = (STATIC / name).parent
        source = (STATIC / name).read_text()
        for path in re.findall(r'^(?:import|export)\b[^"]*from "(\.[^"]+)"', source, re.MULTILINE):
            target = (folder / path).resolve().relative_to(STATIC.resolve())
            imports_of(str(target), seen)
    return seen


def test_the_overview_is_not_heavy() -> None:
    loaded = imports_of("app.js", set()) | imports_of("pages/overview.js", set())
    linked = re.findall(r'="/ui/static/([^"]+)"', (STATIC / "index.html").read_text())
    everything = loaded | set(linked) | {"index.html"}
    assert "vendor/uPlot.js" in everything
    weight = sum((STATIC / name).stat().st_size for name in everything)
    assert weight <= MOST_BYTES, f"{weight} bytes of {sorted(everything)}"

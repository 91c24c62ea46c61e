"""Static files of the dashboard: content, ETags, content security policy, and no other files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.dashboard.static_files import STATIC, FileCache
from tests.gateway.http.openapi.test_docs_page import Page
from tests.gateway.http.test_headers import check_strict
from tests.support.gateway.harness import Gateway, Make, check_problem

pytestmark = pytest.mark.fakeredis_only

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
#: Limit for the uncompressed size of all files that the overview loads.
MOST_BYTES = 150_000


async def test_every_page_serves_the_same_html(make: Make) -> None:
    gateway = make(auth="required")
    for target in ("/ui", "/ui/", "/ui/jobs", "/ui/jobs/a%2Fb", "/ui/no/such"):
        answer = await gateway.client.get(target)
        assert answer.status == 200, "pages and files need no key"
        assert answer.header("content-type") == "text/html; charset=utf-8"
        assert answer.body == (STATIC / "index.html").read_bytes()
        check_strict(answer, POLICY)
        assert answer.header("cross-origin-opener-policy") == "same-origin"
        assert answer.header("permissions-policy")


async def test_html_has_no_inline_script_or_style(gateway: Gateway) -> None:
    html = (await gateway.client.get("/ui")).body.decode()
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


async def test_every_file_has_its_content_type(make: Make) -> None:
    gateway = make(auth="required")
    kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    for name in static_files():
        if name != "index.html":
            answer = await gateway.client.get(f"/ui/static/{name}")
            assert answer.status == 200, name
            assert answer.body == (STATIC / name).read_bytes(), name
            expected = kind[name.rpartition(".")[2]]
            assert (answer.header("content-type") or "").startswith(expected), name
            check_strict(answer, POLICY)


def test_scripts_never_parse_markup() -> None:
    parsing = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc")
    for name in static_files():
        if name.endswith(".js") and not name.startswith("vendor/"):
            source = (STATIC / name).read_text()
            assert not [way for way in parsing if way in source], name
            assert not re.search(r'(?: from |import\(|fetch\(|Source\()"(?![./])', source), name


async def test_unchanged_file_gets_304(gateway: Gateway) -> None:
    first = await gateway.client.get("/ui/static/app.js")
    tag = first.header("etag") or ""
    for known in (tag, f'"other", {tag}', "*"):
        again = await gateway.client.get("/ui/static/app.js", {"if-none-match": known})
        assert (again.status, again.body) == (304, b"")
        assert again.header("etag") == tag
    other = await gateway.client.get("/ui/static/app.js", {"if-none-match": '"other"'})
    assert other.status == 200
    head = await gateway.client.send("HEAD", "/ui/static/app.js")
    assert (head.status, head.header("etag")) == (200, tag)


async def test_other_files_are_not_found(gateway: Gateway) -> None:
    for name in (
        *("nothing.js", "index.html", "pages", "pages/", "", "app.js/", "vendor/README.md"),
        *(
            "../static_files.py",
            "..%2Fstatic_files.py",
            "%2e%2e/static_files.py",
            "pages/../app.js",
        ),
        *("pages/../../x.js", "/etc/passwd", "%2Fetc%2Fpasswd", "app.js%00", "a\\..\\b.js"),
        *("vendor//x.js", "pages/jobs", "pages/jobs/", "pages/jobs/../overview.js", "a/b/c/d.js"),
        "a" * 3000 + ".js",
    ):
        check_problem(await gateway.client.get(f"/ui/static/{name}"), 404)


def test_changed_file_is_read_again(tmp_path: Path) -> None:
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


async def test_root_redirects_browsers(gateway: Gateway) -> None:
    page = await gateway.client.get("/", {"accept": "text/html,*/*"})
    assert (page.status, page.header("location")) == (302, "/ui")
    check_problem(await gateway.client.get("/"), 404)


async def test_dashboard_can_be_disabled(make: Make) -> None:
    gateway = make(dashboard="off")
    for target in ("/", "/ui", "/ui/jobs", "/ui/static/app.js", "/ui/session"):
        check_problem(await gateway.client.get(target, {"accept": "text/html"}), 404)


def imports_of(name: str, seen: set[str]) -> set[str]:
    """Names of a module and all modules that it imports statically, relative to static."""
    if name not in seen:
        seen.add(name)
        folder = (STATIC / name).parent
        source = (STATIC / name).read_text()
        for path in re.findall(r'^(?:import|export)\b[^"]*from "(\.[^"]+)"', source, re.MULTILINE):
            target = (folder / path).resolve().relative_to(STATIC.resolve())
            imports_of(str(target), seen)
    return seen


def test_overview_size_is_within_budget() -> None:
    loaded = imports_of("app.js", set()) | imports_of("pages/overview.js", set())
    linked = re.findall(r'="/ui/static/([^"]+)"', (STATIC / "index.html").read_text())
    everything = loaded | set(linked) | {"index.html"}
    assert "vendor/uPlot.js" in everything
    weight = sum((STATIC / name).stat().st_size for name in everything)
    assert weight <= MOST_BYTES, f"{weight} bytes of {sorted(everything)}"

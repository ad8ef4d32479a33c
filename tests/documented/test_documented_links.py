"""Every page is reached from the README, and what the pages link to or name is there."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.documented.pages import PAGES, ROOT, inline_code, read

LINKING = [*PAGES, "CHANGELOG.md"]
ELSEWHERE = {"docs/source/amp.md"}
"""Files of PyTorch's repository."""

_FILES = re.compile(r"(?:ampbench|benchmarks|docs|tests)/[\w/.-]*\w/?")
_MODULES = re.compile(r"(?P<path>[a-z_]+/[a-z_/*]*)(?:\.(?P<name>\w+))?")


def links(page: str) -> list[str]:
    """Return where the links and images of a page lead to."""
    tokens = [
        one for block in MarkdownIt("commonmark").enable("table").parse(read(page)) for one in block.children or []
    ]
    return [str(one.attrs.get("href") or one.attrs.get("src")) for one in tokens if one.type in ("link_open", "image")]


def anchors(page: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    tokens = MarkdownIt("commonmark").enable("table").parse(read(page))
    found: dict[str, int] = {}
    result = set()
    for heading, text in pairwise(tokens):
        if heading.type != "heading_open":
            continue
        said = "".join(one.content for one in text.children or [] if one.type in ("text", "code_inline"))
        slug = re.sub(r"[^\w\- ]", "", said.lower()).replace(" ", "-")
        count = found[slug] = found.get(slug, -1) + 1
        result.add(f"{slug}-{count}" if count else slug)
    return result


def relative(page: str) -> list[tuple[str, str]]:
    """Return file and anchor of each link of a page that leads to a file of this repository."""
    found = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        found.append((str(target.resolve().relative_to(ROOT)), anchor))
    return found


@pytest.mark.parametrize("page", LINKING)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: str) -> None:
    for path, anchor in relative(page):
        assert (ROOT / path).exists(), path
        assert not anchor or anchor in anchors(path), f"{path}#{anchor}"


def test_every_page_is_reached_from_the_readme_by_links() -> None:
    reached: set[str] = set()
    following = ["README.md"]
    while following:
        page = following.pop()
        if page not in reached:
            reached.add(page)
            following += [path for path, _ in relative(page)] if page.endswith(".md") else []
    assert set(PAGES) <= reached, "link the new page from docs/README.md or from a page that is linked"


@pytest.mark.parametrize("page", PAGES)
def test_every_file_of_the_project_that_a_page_names_is_there(page: str) -> None:
    named = {text for _, code in inline_code(page) for text in [code.split("::")[0]] if _FILES.fullmatch(text)}
    named |= set(re.findall(r"\bdocs/[\w/-]+\.(?:md|toml|yml)\b", read(page)))
    named = {name for name in named - ELSEWHERE if not re.search("NAME|FAMILY", name)}  # what a recipe lets be chosen
    assert [name for name in sorted(named) if not Path(ROOT / name).exists()] == []


def test_every_page_that_a_message_or_docstring_names_is_there() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "ampbench").rglob("*.py"))
    assert [name for name in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", sources) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_module_that_a_page_names_by_its_place_in_the_package_is_there_and_has_what_is_named(page: str) -> None:
    package = ROOT / "ampbench"
    for _, code in inline_code(page):
        found = _MODULES.fullmatch(code)
        if (
            not found
            or not (package / found["path"].partition("/")[0]).is_dir()
            or found["name"] in ("py", "html", "css")
        ):
            continue
        places = [*package.glob(f"{found['path'].rstrip('/')}.py"), *package.glob(found["path"])]
        assert places, code
        if found["name"]:
            assert re.search(rf"\b{found['name']}\b", places[0].read_text()), code

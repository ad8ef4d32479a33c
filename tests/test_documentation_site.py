"""What the site is made of: every page is in its menu, and what is generated has a row for everything there is."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from ampbench.cli import main
from ampbench.core.metrics import COLUMNS
from ampbench.workloads.index import WORKLOADS
from benchmarks.site import GENERATED, MARK, on_page_markdown

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CONFIG = SimpleNamespace(repo_url="https://example.org/x", edit_uri="blob/main/")
PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="ci/README.md"))
FILLED = {"columns": COLUMNS, "workloads": WORKLOADS, "commands": main.verbs()}


def test_every_page_is_in_the_menu_once() -> None:
    menu = re.findall(r"[\w/-]+\.md", (DOCS.parent / "mkdocs.yml").read_text())
    assert sorted(menu) == [str(path.relative_to(DOCS)) for path in PAGES], "mkdocs.yml has the menu"


def test_everything_generated_has_its_place_on_one_page() -> None:
    assert sorted(name for path in PAGES for name in MARK.findall(path.read_text())) == sorted(GENERATED)


@pytest.mark.parametrize("made", FILLED)
def test_a_generated_list_has_everything_there_is(made: str) -> None:
    lines = GENERATED[made]().splitlines()
    rows = [line.split(" | ")[0][2:] for line in lines if line.startswith("| ")][2:]
    assert (rows or [line[12:] for line in lines if line.startswith("## ")]) == list(FILLED[made])


def test_links_out_of_the_documentation_lead_into_the_repository() -> None:
    text = on_page_markdown("[a](../gate.md#x) [b](../../CHANGELOG.md)", page=PAGE, config=CONFIG)
    assert text == "[a](../gate.md#x) [b](https://example.org/x/blob/main/CHANGELOG.md)"

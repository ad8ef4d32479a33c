"""The pages on studies and paths, and the README: their commands exist."""

import pytest

from tests.documented_pages import ROOT, assert_exists, commands_of

PAGES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("ceilings", "convergence", "input-storage", "loss-scaling", "paths", "scope")),
]
COMMANDS = [(page, words) for page in PAGES for words in commands_of((ROOT / page).read_text())]


@pytest.mark.parametrize(("page", "words"), [each for each in COMMANDS if len(each[1]) > 1], ids=str)
def test_every_command_on_these_pages_is_one_that_exists_with_flags_that_exist(page: str, words: list[str]) -> None:
    assert_exists(words)


def test_every_page_has_commands() -> None:
    assert {page for page, _ in COMMANDS} == set(PAGES)

"""The runs that the repository keeps, read once, and a browser."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from ampbench.report.material import Material, gather
from tests.report.materials import CHROMIUM, HISTORY, RESULTS, SUITE_RUN


@pytest.fixture(scope="session")
def readme_run() -> Material:
    """The default suite, measured."""
    return gather([SUITE_RUN], RESULTS)


@pytest.fixture(scope="session")
def history() -> Material:
    """Runs of five torch versions."""
    return gather(HISTORY, RESULTS)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()

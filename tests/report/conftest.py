"""The runs that the repository keeps, read once, and a browser; what these need is imported where it is used."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def readme_run() -> Any:
    """The default suite, measured."""
    from ampbench.report.material import gather
    from tests.report.materials import RESULTS, SUITE_RUN

    return gather([SUITE_RUN], RESULTS)


@pytest.fixture(scope="session")
def history() -> Any:
    """Runs of five torch versions."""
    from ampbench.report.material import gather
    from tests.report.materials import HISTORY, RESULTS

    return gather(HISTORY, RESULTS)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Debian's Chromium, without a window."""
    from playwright.sync_api import sync_playwright

    from tests.report.materials import CHROMIUM

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()

"""Material for tests of the report's views: from runs in memory, and from the runs that the repository keeps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup

from ampbench.report.material import Material, material_of
from ampbench.report.page import make_page, render
from ampbench.report.view import View
from ampbench.store import StoredRun

RESULTS = Path(__file__).parents[2] / "results"
README_RUN = "20261121T031846Z-vm-ecda2f"


def make_material(*runs: StoredRun, baseline: StoredRun | None = None, **changes: Any) -> Material:
    """Return the material of `runs` without trends, with `changes`."""
    return replace(material_of(runs, baseline), **changes)


def section_of(view: View, material: Material) -> BeautifulSoup:
    """Return a page that holds `view` alone, parsed as a browser does."""
    return BeautifulSoup(render("page.html", [view], material=material, home="", title="a test"), "html5lib")


def page_of(material: Material) -> BeautifulSoup:
    """Return the whole page, parsed as a browser does."""
    return BeautifulSoup(make_page(material), "html5lib")

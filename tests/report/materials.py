"""Material for tests of the report's views: from runs in memory, and from the runs that the repository keeps."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from ampbench.report.material import Material, material_of
from ampbench.report.views import Part, study_parts
from ampbench.store import StoredRun

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NO_CHROMIUM = "there is no Chromium: `apt install chromium`, or give another one that name in a folder of the PATH"
RESULTS = Path(__file__).parents[2] / "results"
SUITE_RUN = "20261121T031846Z-vm-ecda2f"
HISTORY = (
    SUITE_RUN,
    "20261121T050644Z-vm-016a7e",
    "20261121T050808Z-vm-4db4fe",
    "20261121T050931Z-vm-88b220",
    "20261121T051055Z-vm-7ad613",
    "20261121T051219Z-vm-7a3f2e",
    "20261121T051344Z-vm-502640",
    "20261121T051509Z-vm-4f9a20",
    "20261121T051635Z-vm-282d99",
    "20261121T051801Z-vm-bb7c09",
    "20261121T051926Z-vm-12cb08",
)
"""Runs of five torch versions on one machine; those that are kept later change no test."""


def make_material(*runs: StoredRun, baseline: StoredRun | None = None, **changes: Any) -> Material:
    """Return the material of `runs` without trends, with `changes`."""
    return replace(material_of(runs, baseline), **changes)


def part_of(id: str, material: Material) -> Part | None:
    """Return the part of a study on the page of material, by its id."""
    return next((part for part in study_parts(material) if part.id == id), None)

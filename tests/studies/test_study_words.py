"""Every code that a study concludes has its words, and the page has studies' parts from the same."""

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from ampbench import studies
from ampbench.report.material import material_of
from ampbench.show.studies import TEMPLATES
from ampbench.store import gathered
from tests.report.materials import part_of
from tests.stored_runs import make_case, make_header
from tests.studies.storage_passes import lossy_pass, storage_pass

MODULES = [import_module(f"ampbench.studies.{each.name}") for each in iter_modules(studies.__path__)]
CODES = {
    str(code)
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, StrEnum) and kind.__module__ == module.__name__
    for code in kind
    if "-" in code
}


def test_codes_and_words_are_the_same() -> None:
    assert set(TEMPLATES) == CODES, "TEMPLATES of show/studies.py has a line for each code, and no other"


def test_a_page_has_the_cases_with_problems_first() -> None:
    same, lossy = (make_case("bf16_autocast", workload=name, phase="training") for name in ("same", "lossy"))
    entries = [same, lossy, storage_pass(same), lossy_pass(lossy)]
    run = gathered(Path("run.jsonl"), make_header(explains="input-storage"), entries)
    part = part_of("input-storage", material_of([], explanations=[run]))
    assert [detail.name for detail in part.details] == ["lossy bf16_autocast", "same bf16_autocast"]

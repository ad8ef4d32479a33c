"""The site's lists of defects and of rules are what committed runs say, by the programs that there are today."""

import re
from pathlib import Path

import pytest
from packaging.version import Version

from ampbench.defects import CHECKS
from ampbench.records.kinds import RULES
from ampbench.records.rules import RuleProbe
from ampbench.studies.check import DEFECTIVE, DIFFERS, GOOD, NOT_SHOWN
from benchmarks.defects import ABSENT, PROBES, WITHOUT_CHECK, matrices, page
from benchmarks.rules import PROBES as OF_RULES
from benchmarks.rules import page as page_of_rules
from benchmarks.rules import read_probes, version

PLANTING = Path(__file__).parent / "defects"


def test_every_check_has_a_section_with_what_was_seen_and_what_to_do() -> None:
    sections = page(read_probes(PROBES)).split("\n### ")[1:]
    assert [section.partition("\n")[0] for section in sections] == list(CHECKS)
    assert any("Seen on cpu: the output goes from 4.0 to 4.0 (expected: the output" in section for section in sections)


def test_no_check_asks_for_what_is_told_to_have_none() -> None:
    asked = {thread for check in CHECKS.values() for thread in check.threads}
    told = set(re.findall(r"[\w-]+/[\w-]+#\d+", WITHOUT_CHECK))
    assert asked & told == set()


@pytest.mark.parametrize(
    "name", [name for name, check in CHECKS.items() if Version(check.mended or "0") >= Version("2.12")]
)
def test_a_defect_is_mended_since_the_version_that_its_row_names(name: str) -> None:
    mended = Version(CHECKS[name].mended)
    told = [
        (Version(number) >= mended, outcome)
        for one in matrices(read_probes(PROBES))
        for number, outcome in zip(one.versions, one.outcomes(name), strict=True)
    ]
    assert {outcome for since, outcome in told if since} <= {GOOD, NOT_SHOWN, ABSENT}
    assert DEFECTIVE in {outcome for since, outcome in told if not since}


def test_each_check_has_been_seen_to_fail_with_some_torch_or_by_planting_its_defect() -> None:
    failed = {
        check.name
        for one in matrices(read_probes(PROBES))
        for check in one.checks
        if {DEFECTIVE, DIFFERS} & set(one.outcomes(check.name))
    }
    planting = "".join(path.read_text(encoding="utf-8") for path in PLANTING.glob("test_planted_*.py"))
    assert [name for name in CHECKS if name not in failed and f'"{name}": ' not in planting] == []


@pytest.fixture(scope="module")
def probed():
    return read_probes()


def test_every_version_from_the_oldest_supported_is_there_with_all_devices_and_dtypes(probed):
    assert [version(one) for one in probed] == ["2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0"]
    for one in probed:
        assert {each.device: each.how for each in one.of(RuleProbe).values()} == {
            "cpu": "device",
            "cuda": "fake tensors",
            "xpu": "fake tensors",
        }
        assert {tuple(each.dtypes) for each in one.of(RuleProbe).values()} == {("float16", "bfloat16")}


def test_committed_probes_are_small_whole_runs(probed):
    assert all(path.stat().st_size < 300_000 for path in OF_RULES.iterdir())
    assert {(one.header.explains, one.ended) for one in probed} == {(RULES, "complete")}


def test_the_page_says_first_what_no_hardware_ran(probed):
    text = page_of_rules(probed)
    assert text.index("**Not run on hardware: CUDA and XPU.**") < text.index("## ")

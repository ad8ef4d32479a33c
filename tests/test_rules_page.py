"""The site's list of rules, and the committed probes that it is made of."""

import pytest

from ampbench.records.kinds import RULES
from ampbench.records.rules import RuleProbe
from benchmarks.rules import PROBES, page, read_probes, version


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
    assert all(path.stat().st_size < 300_000 for path in PROBES.iterdir())
    assert {(one.header.explains, one.ended) for one in probed} == {(RULES, "complete")}


def test_the_page_says_first_what_no_hardware_ran(probed):
    text = page(probed)
    assert text.index("**Not run on hardware: CUDA and XPU.**") < text.index("## ")

"""What a program comes to: by what it sets, writes, warns of and raises."""

from unittest import mock

import pytest

from ampbench.defects import CACHE, Check
from ampbench.records.measured import Fitness
from ampbench.records.rules import DEVICE, FAKE, NOT_OBSERVED
from ampbench.studies import devices_measure as measure
from ampbench.studies.check import DEFECTIVE, DIFFERS, GOOD, NOT_SHOWN, CheckAsked, Checked
from ampbench.studies.devices_measure import do_check, run_program
from ampbench.worker.worker import Work


def ran(text: str, device: str = "cpu", *, by_design: bool = False) -> Checked:
    row = Check(
        name="one", area=CACHE, title="t", threads=("a/b#1",), why="w", remedy="r", by_design=by_design, fake=True
    )
    with mock.patch.object(measure, "CHECKS", {"one": row}):
        return run_program("one", text, device)


def test_what_is_seen_as_expected_is_good() -> None:
    found = ran('expected = "a"\nseen = "a"\nprint("expected:", expected)\nprint("more")\n')
    assert (found.outcome, found.how, found.expected, found.seen) == (GOOD, DEVICE, "a", "a")
    assert found.said == ["more"]
    assert found.seconds is not None


@pytest.mark.parametrize(("by_design", "outcome"), [(False, DEFECTIVE), (True, DIFFERS)])
def test_what_is_seen_otherwise_is_a_defect_or_differs_by_design(by_design: bool, outcome: str) -> None:
    assert ran('expected, seen = "a", "b"', by_design=by_design).outcome == outcome


def test_a_program_that_ends_with_an_error_shows_nothing() -> None:
    found = ran('expected = "a"\nraise ValueError("two\\nlines")')
    assert (found.outcome, found.how, found.seen) == (NOT_SHOWN, NOT_OBSERVED, "")
    assert found.why == "the program ended with ValueError: two"


def test_an_absent_device_is_stood_in_for_by_fake_tensors_under_its_own_autocast() -> None:
    text = """import torch
with torch.autocast("xpu", dtype=torch.bfloat16):
    seen = str(torch.mm(torch.ones(2, 2, device="xpu"), torch.ones(2, 2, device="xpu")).dtype)
expected = "torch.bfloat16"
"""
    found = ran(text, "xpu")
    assert (found.outcome, found.how) == (GOOD, FAKE)


@pytest.mark.parametrize(
    ("name", "others", "outcome"),
    [("bf16-matmul-speed", 0.8, NOT_SHOWN), ("bf16-matmul-speed", 0.1, DEFECTIVE), ("adam-fp16-eps", 0.8, DEFECTIVE)],
)
def test_what_goes_by_times_shows_nothing_while_others_use_the_cpu(name: str, others: float, outcome: str) -> None:
    work = mock.Mock(spec=Work, device_type="cpu")
    with mock.patch.object(measure, "FitnessWatch") as watch:
        watch.return_value.seen.return_value = Fitness(other_share=others)
        found = do_check(work, CheckAsked(check=name, text='expected, seen = "a", "b"'))
    assert found.outcome == outcome
    assert ("other work took 80.0% of the CPU" in found.why) == (outcome == NOT_SHOWN)

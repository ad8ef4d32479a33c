"""What the page says of stored inputs: the two situations told apart."""

from ampbench.report.material import material_of
from ampbench.show.page import Part
from ampbench.store import StoredRun
from tests.report.materials import part_of
from tests.report.studied_runs import (
    BF16,
    storage_run,
    stored,
)
from tests.stored_runs import make_case


def drawn(*runs: StoredRun) -> Part:
    """Return the part of the page that tells of `runs`."""
    part = part_of("input-storage", material_of([], explanations=list(runs)))
    assert part is not None
    return part


def test_the_two_situations_of_stored_inputs_are_told_apart_the_lossy_ones_first():
    other = make_case("bf16_autocast", workload="other", phase="training")
    part = drawn(storage_run(stored(other), stored(lossy=True), cases=(other, BF16)))
    assert [name for name, _ in part.overview.rows] == ["digits bf16_autocast", "other bf16_autocast"]
    assert part.said[0].endswith("an op that reads it in fp32: digits bf16_autocast.")
    assert part.said[1].endswith("cast the input anyway: other bf16_autocast.")

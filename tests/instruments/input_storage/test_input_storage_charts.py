"""What the page says of stored inputs: the two situations told apart."""

from ampbench.present.page import Part
from ampbench.report.material import material_of
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
    assert [(name, cells[0], cells[6]) for name, cells in part.overview.rows] == [
        ("digits bf16_autocast", "information lost", "others"),
        ("other bf16_autocast", "nothing lost", "the same"),
    ]
    assert part.said[0].endswith("is given a rounded one: digits bf16_autocast.")
    assert part.said[1].endswith("only a cast is saved: other bf16_autocast.")

"""Whatever qualifies a number in the terminal qualifies it on the page."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from msgspec import structs

from ampbench.core.budget import Budget
from ampbench.judge import frame
from ampbench.judge.notes import statements
from ampbench.judge.verdict import takes_of
from ampbench.records.case import DeviceDescription
from ampbench.records.measured import Fitness
from ampbench.records.run import Imported
from ampbench.report.views import networks, result
from ampbench.show.document import as_sentence
from ampbench.show.wording import answer, lines
from ampbench.store import StoredRun
from tests.compared_runs import BF16, FP32, Times, environment, make_run
from tests.report.materials import make_material, section_of
from tests.stored_runs import make_divergence, make_header

QUIET = Times((FP32, [2e-3] * 4), (BF16, [1e-3] * 4))


def with_rounds(run: StoredRun, **changes: Any) -> StoredRun:
    return replace(run, rounds=[structs.replace(one, **changes) for one in run.rounds])


def with_errors(**changes: Any) -> StoredRun:
    run = make_run(QUIET)
    return replace(run, divergence={case.case_id: make_divergence(case, **changes) for case in (FP32, BF16)})


def emulating() -> StoredRun:
    device = DeviceDescription(type="cpu", available=True, name="AMD EPYC", arithmetic={"bfloat16": "emulated"})
    return make_run(QUIET, header=environment(make_header(), devices=[device]))


KINDS: Mapping[str, Callable[[], StoredRun]] = MappingProxyType(
    {
        "too few rounds to take": lambda: make_run(Times((FP32, [2e-3] * 2), (BF16, [1e-3] * 2))),
        "too few rounds to stay": lambda: make_run(Times((FP32, [1e-3] * 2), (BF16, [2e-3] * 2))),
        "no certain speedup": lambda: make_run(
            Times((FP32, [1e-3, 2e-3, 1e-3, 2e-3]), (BF16, [2e-3, 1e-3, 1.1e-3, 1e-3]))
        ),
        "a busy machine": lambda: with_rounds(make_run(QUIET), fitness=Fitness(other_share=0.76)),
        "a random network": lambda: with_errors(chance_rel_l2=1.22),
        "errors undefined": lambda: with_errors(output_rel_l2=None, output_undefined="the reference is zero"),
        "emulated arithmetic": emulating,
        "another program's numbers": lambda: make_run(
            QUIET, header=make_header(imported=Imported(program="asv", file="a.json"))
        ),
        "entries lost": lambda: replace(make_run(QUIET), lacks={FP32.case_id: ["round 2"]}),
    }
)
"""A caveat of each kind of place: the advice, rounds, errors, the device, the header, the file."""


def words(text: str) -> str:
    """Return text without line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_says_every_caveat_that_the_terminal_does(kind: str) -> None:
    run = KINDS[kind]()
    rows = frame.run_rows(run)
    advised = [one.statement for one in takes_of(run, Budget()).values()]
    notes = lines(statements(run, rows), run.cases, everything=False)
    open_still = [one for one in advised if "cause" in one.facts or "precision" not in one.facts]
    assert notes or open_still, "nothing is qualified"

    material = make_material(run)
    view = networks(material)
    table = words(section_of(view).get_text(" ")) if view else ""
    for note in notes:
        assert as_sentence(note) in result(material).warnings
    for one in open_still:
        assert words(answer(one)) in table


@pytest.mark.parametrize("kind", ["too few rounds to take", "too few rounds to stay", "a busy machine"])
def test_a_heading_that_advises_what_is_not_certain_says_so(kind: str) -> None:
    material = make_material(KINDS[kind]())
    assert "(not certain)" in result(material).heading

"""The sections of a page as data: the answer, its caveats, networks, cases, the trade-off, studies."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from msgspec import structs

from ampbench.core.budget import Budget
from ampbench.core.units import format_seconds
from ampbench.judge import frame
from ampbench.judge.notes import statements
from ampbench.judge.verdict import takes_of
from ampbench.records.case import DeviceDescription
from ampbench.records.casts import CastTrace, Operation
from ampbench.records.measured import Failure, Fitness, Skip
from ampbench.records.run import Imported
from ampbench.report.material import Material, material_of
from ampbench.report.page import make_page
from ampbench.report.views import (
    AT_ONCE,
    DETAILED,
    LISTED,
    Part,
    cases,
    contents,
    explanation,
    networks,
    result,
    tradeoff,
)
from ampbench.show.charts import MARKED, POINTS, marked, thinned_curve
from ampbench.show.comparison import control_line, verdict
from ampbench.show.document import Block, as_sentence
from ampbench.show.wording import answer, lines
from ampbench.store import StoredRun, gathered, read_run
from ampbench.studies.scope import ScopePass
from tests.compared_runs import BF16, FP32, Times, arms, environment, make_run, noisy
from tests.report.large_runs import write_zoo_run
from tests.report.materials import make_material, part_of
from tests.report.traced_runs import explaining, make_pass
from tests.stored_runs import make_case, make_divergence, make_header


def blocks(parts: Sequence[Part], title: str = "") -> list[Block]:
    """Return the tables of parts whose title begins with `title`, their rows as lists."""
    tables = [block for part in parts for block in part.blocks if block.rows and block.title.startswith(title)]
    return [replace(block, rows=[list(row) for row in block.rows]) for block in tables]


def rows_of(block: Block) -> list[dict[str, str]]:
    return [dict(zip(block.headers, row, strict=True)) for row in block.rows]


def fast_bf16(**header: object) -> StoredRun:
    return make_run(Times((FP32, [2e-3] * 4), (BF16, [1e-3] * 4)), header=make_header(**header))


def elsewhere(run: StoredRun, **changes: Any) -> StoredRun:
    header = make_header(run="second", started_at="2026-02-01T12:00:00Z")
    return replace(run, header=environment(header, **{"host": "elsewhere", "cpu": "Xeon", **changes}))


# The answer


def test_the_heading_names_the_device_and_what_to_take_of_each_network(readme_run: Material) -> None:
    assert result(make_material(fast_bf16())).heading == "AMD EPYC, 2 threads · torch 2.15.0: take bf16_autocast"
    taken = Counter(take.precision for take in readme_run.shown[0].result.takes.values())
    assert f"take bf16_pure for {taken['bf16_pure']} of {taken.total()}, " in result(readme_run).heading
    slow = elsewhere(make_run(Times((FP32, [1e-3] * 4), (BF16, [2e-3] * 4))))
    several = result(make_material(fast_bf16(), slow)).heading
    assert several == "2 devices: take bf16_autocast for 1 of 2, stay in fp32 for 1"
    without_fp32 = make_run(Times((BF16, [1e-3] * 4)))
    assert result(make_material(without_fp32)).heading.endswith(": no advice")


def test_a_history_is_headed_by_its_highest_version_though_an_older_one_ran_last(history: Material) -> None:
    assert result(history).heading.startswith("AMD EPYC, 2 threads · torch 2.15.0: ")


def test_a_run_without_a_measured_case_says_so() -> None:
    failure = Failure(case_id=FP32.case_id, stage="round", cause="out of memory", message="no room")
    skip = Skip(case_id=BF16.case_id, reason="no loss was given")
    run = replace(fast_bf16(), rounds=[], failures={FP32.case_id: failure}, skips={BF16.case_id: skip})
    view = result(make_material(run))
    assert view.heading == "Nothing was measured: 1 failed, 1 skipped"
    assert blocks(view.parts, "without a result")[0].rows[1] == [
        "skipped", "no loss was given", "1", "bf16_autocast", "linear_chain",
    ]  # fmt: skip
    empty = result(make_material(StoredRun(path=Path("run.jsonl"), header=make_header())))
    assert empty.heading == "Nothing was measured: there are no cases"
    assert "Run 20260131T120000Z-bench-1f9a3c is not complete: killed, or still running." in empty.warnings


def test_with_a_baseline_the_heading_is_the_verdict_of_all_comparisons() -> None:
    base = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(1e-3))), header=make_header(run="base"))
    slower = [
        make_run(
            Times((case, noisy(seconds, seed=number))),
            header=environment(make_header(run=f"after-{number}"), torch_version=f"2.1{number}.0"),
        )
        for number, case, seconds in ((6, FP32, 1.5e-3), (7, BF16, 3e-3))
    ]
    alone = make_material(slower[1], baseline=base)
    assert result(alone).heading == verdict(*alone.comparisons)
    assert blocks(result(alone).parts, "changed")[0].rows[0][1:6] == [
        "linear_chain bf16_autocast", "time", "1.00 ms", "3.00 ms", "+200%",
    ]  # fmt: skip
    view = result(make_material(*slower, baseline=base))
    assert view.heading.startswith("2 regressed (time 2), ")
    assert [block.rows[0][1] for block in blocks(view.parts, "changed")] == [
        "linear_chain fp32", "linear_chain bf16_autocast",
    ]  # fmt: skip


# Caveats


def test_what_weakens_a_comparison_is_a_warning() -> None:
    base = make_run(Times((FP32, noisy(1e-3))), header=make_header(run="base"))
    new = environment(make_header(run="new"), cpu="Xeon")
    warned = result(make_material(make_run(Times((FP32, noisy(1e-3))), header=new), baseline=base)).warnings
    assert any(text.startswith("Not measured in turns") for text in warned)
    assert any("Xeon (times are not comparable)" in text for text in warned)
    ours, theirs = arms()
    base = make_run(Times((FP32, noisy(1e-3))), control=noisy(1.07e-3, seed=2), header=ours)
    material = make_material(make_run(Times((FP32, noisy(1e-3, seed=1))), header=theirs), baseline=base)
    assert as_sentence(control_line(material.comparisons[0].control)) in result(material).warnings


def disturbed(run: StoredRun) -> StoredRun:
    return replace(run, rounds=[structs.replace(timing, samples=[[1e-3, 2e-3, 2e-3]]) for timing in run.rounds])


def test_a_warning_names_its_run_where_it_does_not_hold_of_all() -> None:
    (warned,) = result(make_material(disturbed(fast_bf16()))).warnings
    assert warned.startswith("This machine was not quiet: end other work")
    (warned,) = result(make_material(fast_bf16(), disturbed(elsewhere(fast_bf16())))).warnings
    assert warned.startswith("second: this machine was not quiet: ")
    imported = Imported(program="asv", file="a.json")
    ran = disturbed(fast_bf16(imported=imported))
    warned = result(make_material(fast_bf16(run="new"), baseline=ran)).warnings
    assert any(text.startswith("Baseline: this machine was not quiet: ") for text in warned)
    assert "Baseline: imported from asv: a.json." in warned
    both = make_material(fast_bf16(run="new", imported=imported), baseline=fast_bf16(imported=imported))
    assert list(result(both).warnings).count("Imported from asv: a.json.") == 1


QUIET = Times((FP32, [2e-3] * 4), (BF16, [1e-3] * 4))


def with_errors(**changes: Any) -> StoredRun:
    return replace(
        make_run(QUIET), divergence={case.case_id: make_divergence(case, **changes) for case in (FP32, BF16)}
    )


def busy() -> StoredRun:
    run = make_run(QUIET)
    return replace(run, rounds=[structs.replace(timing, fitness=Fitness(other_share=0.76)) for timing in run.rounds])


EMULATING = DeviceDescription(type="cpu", available=True, name="AMD EPYC", arithmetic={"bfloat16": "emulated"})
KINDS: Mapping[str, Callable[[], StoredRun]] = MappingProxyType(
    {
        "too few rounds to take": lambda: make_run(Times((FP32, [2e-3] * 2), (BF16, [1e-3] * 2))),
        "too few rounds to stay": lambda: make_run(Times((FP32, [1e-3] * 2), (BF16, [2e-3] * 2))),
        "no certain speedup": lambda: make_run(
            Times((FP32, [1e-3, 2e-3, 1e-3, 2e-3]), (BF16, [2e-3, 1e-3, 1.1e-3, 1e-3]))
        ),
        "a busy machine": busy,
        "a random network": lambda: with_errors(chance_rel_l2=1.22),
        "errors undefined": lambda: with_errors(output_rel_l2=None, output_undefined="the reference is zero"),
        "emulated arithmetic": lambda: make_run(QUIET, header=environment(make_header(), devices=[EMULATING])),
    }
)
"""A caveat of each kind of place: the advice, rounds, errors, the device, the file."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_has_every_caveat_of_the_terminal(kind: str) -> None:
    run = KINDS[kind]()
    noted = lines(statements(run, frame.run_rows(run)), run.cases, everything=False)
    advised = [take.statement for take in takes_of(run, Budget()).values()]
    uncertain = [advice for advice in advised if "cause" in advice.facts or "precision" not in advice.facts]
    assert noted or uncertain, "nothing is qualified"
    material = make_material(run)
    assert {*map(as_sentence, noted)} <= {*result(material).warnings}
    view = networks(material)
    sentences = [row[1] for block in blocks(view.parts, "why") for row in block.rows] if view else []
    assert all(any(answer(advice) in sentence for sentence in sentences) for advice in uncertain)
    if kind in ("too few rounds to take", "too few rounds to stay", "a busy machine"):
        assert "(not certain)" in result(material).heading


# Networks


def network_blocks(material: Material, title: str = "") -> list[Block]:
    view = networks(material)
    assert view is not None
    return blocks(view.parts, title)


def test_every_network_has_a_row_in_its_phase_and_long_tables_are_folded(tmp_path: Path) -> None:
    zoo = make_material(read_run(write_zoo_run(tmp_path, networks=100)))
    tables = network_blocks(zoo)
    names = [row[0] for block in tables for row in block.rows if row[0].startswith("timm:")]
    assert len(names) == len({(row["workload"], row["phase"]) for row in zoo.rows if row["outcome"] == "ok"})
    assert all(len(block.rows) <= AT_ONCE for block in tables if not block.folded)


# Cases


def case_rows(material: Material) -> list[dict[str, str]]:
    view = cases(material)
    assert view is not None
    return rows_of(view.parts[0].blocks[0])


def test_every_case_that_was_measured_or_failed_is_a_row_with_the_columns_of_the_terminal(readme_run: Material) -> None:
    rows, measured = case_rows(readme_run), [row for row in readme_run.rows if row["outcome"] == "ok"]
    assert list(rows[0]) == [
        "case", "precision", "time/step", "speed", "memory", "error", "argmax", "gradient error", "verdict",
    ]  # fmt: skip
    assert [row["time/step"] for row in rows] == [format_seconds(row["seconds_median"]) for row in measured]
    failed = make_run(Times((FP32, noisy(1e-3)), (BF16, [])))
    failed.failures[BF16.case_id] = Failure(case_id=BF16.case_id, stage="round", cause="exception", message="no <k>")
    assert [row["verdict"] for row in case_rows(make_material(failed))] == ["baseline", "failed: no <k>"]
    here, there = fast_bf16(run="one"), elsewhere(fast_bf16())
    assert [row["run"] for row in case_rows(make_material(here, there))] == ["one", "one", "second", "second"]


# The trade-off


def traded(*measured: tuple[str, str, float, float | None]) -> Material:
    """Return a run of workloads in precisions, each with its seconds and its output error."""
    made = [make_case(name, workload=workload) for workload, name, *_ in measured]
    run = make_run(Times(*((case, noisy(seconds)) for case, (*_, seconds, _) in zip(made, measured, strict=True))))
    for case, (*_, error) in zip(made, measured, strict=True):
        run.divergence[case.case_id] = make_divergence(case, output_rel_l2=error)
    return make_material(run)


FAST = (
    ("mlp", "fp32", 1e-3, 2e-7), ("mlp", "bf16_autocast", 0.5e-3, 4e-3), ("mlp", "bf16_pure", 0.25e-3, 5e-2),
    ("vgg", "fp32", 1e-3, 3e-7), ("vgg", "bf16_autocast", 0.8e-3, 6e-3),
)  # fmt: skip


def test_every_low_precision_is_a_point_with_its_interval_and_what_is_refused_is_crossed_out() -> None:
    odd = (("mlp", "fp16_pure", 1e-3, float("inf")), ("mlp", "bf16_master", 1e-3, None), ("gru", "bf16_pure", 1, 1e-3))
    view = tradeoff(traded(*FAST, *odd))
    assert view is not None
    rows = view.charts[0].pictures[0].rows
    assert {(row["table"], row["precision"], row["wrong"]) for row in rows} == {
        ("mlp inference", "bf16_autocast", False),
        ("mlp inference", "bf16_pure", True),
        ("vgg inference", "bf16_autocast", False),
    }
    assert all(row["low"] <= row["speed"] * 1.001 and row["high"] >= row["speed"] * 0.999 for row in rows)
    assert "The fastest that is ok is mlp inference bf16_autocast: " in view.charts[0].pictures[0].alt
    assert tradeoff(traded(FAST[0])) is None


# Studies


def only(*runs: StoredRun) -> Material:
    return material_of([], explanations=list(runs))


def of_kind(kind: str) -> StoredRun:
    """Return a small run of the real program."""
    return read_run(Path(__file__).parents[1] / "net" / "runs" / f"{kind}.jsonl")


casts = partial(part_of, "casts")


def test_a_page_of_all_studies_has_their_parts_in_order_and_the_first_finding_above() -> None:
    material = only(*map(of_kind, ("scope", "ceilings", "input-storage", "rules", "casts", "convergence", "headroom")))
    view = explanation(material)
    assert view is not None
    assert [part.title for part in view.parts] == [
        "Headroom", "Casts", "Trainings", "Scope of autocast", "Inputs stored in half", "Autocast's rules", "Ceilings",
    ]  # fmt: skip
    assert len(view.charts) == 2
    assert result(material).heading.startswith("model.py:make fp32: fp16: nothing in 4 modules would overflow")
    assert contents(material)[1:4] == [
        "the casts of 2 cases", "trainings of 5 cases", "the scope of autocast in 1 case",
    ]  # fmt: skip


def test_the_study_that_has_a_problem_is_the_heading() -> None:
    heading = result(only(of_kind("scope"), of_kind("scaler"))).heading
    assert heading == "model.py:make: fp32: loss not finite from step 30 in 1 of 1 seed."


def test_a_case_without_a_result_has_its_reason() -> None:
    run = replace(of_kind("scope"), found={})
    (case_id,) = run.cases
    (part,) = explanation(only(run)).parts
    assert next(row for block in part.blocks for row in block.rows)[1] == "not reached before the run ended"
    run.failures[case_id] = Failure(case_id=case_id, stage="round", cause="OutOfMemoryError", message="<b>")
    (part,) = explanation(only(run)).parts
    assert next(row for block in part.blocks for row in block.rows)[1] == "OutOfMemoryError: <b>"
    assert result(only(run)).heading == "Nothing was measured: 1 failed"


@pytest.mark.slow
def test_very_many_cases_and_a_step_of_100_000_ops_stay_small() -> None:
    run = of_kind("scope")
    ((case_id, case),) = run.cases.items()
    many = [structs.replace(case, workload=f"net_{number}") for number in range(LISTED + 5)]
    passes = [structs.replace(run.of(ScopePass)[case_id], case_id=each.case_id) for each in many]
    (part,) = explanation(only(gathered(run.path, run.header, [*many, *passes]))).parts
    assert (len(part.details), sum(bool(detail.blocks) for detail in part.details)) == (LISTED, DETAILED)
    assert part.said[-1] == f"{LISTED} of {LISTED + 5} cases are listed."
    ops = [
        Operation(index=index, name="aten.mm", module=f"layer.{index // 100}", inputs=("bf16",), outputs=("bf16",))
        for index in range(100_000)
    ]
    assert len(make_page(only(explaining(make_pass(trace=CastTrace(ops=ops, casts=[], timed=False)))))) < 1_000_000


def test_curves_are_thinned_break_where_a_loss_is_not_finite_and_carry_their_shapes_apart() -> None:
    assert thinned_curve([4.0, 2.0, None]) == [(1.0, 4.0), (2.0, 2.0), (3.0, None)]
    whole = thinned_curve([float(step) for step in range(1, 1001)])
    assert (len(whole), whole[0]) == (POINTS, (5.5, 5.5))
    rows = [{"series": name, "mark": False} for name in "abc" for _ in range(80)]
    marked(rows)
    places = [[place for place, row in enumerate(rows[start : start + 80]) if row["mark"]] for start in (0, 80, 160)]
    assert [len(own) for own in places] == [MARKED] * 3
    assert len({*places[0], *places[1], *places[2]}) == 3 * MARKED

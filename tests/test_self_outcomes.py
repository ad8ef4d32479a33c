"""The proof of advice, the atlas, and the benchmarks of ampbench itself go on working."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ampbench.core.precisions import BASELINE
from ampbench.records.run import Footer, Selection
from ampbench.store import RunWriter
from ampbench.studies.training import CONTROL
from benchmarks import atlas
from benchmarks.atlas import MOST, TOGETHER, command, page, plan
from benchmarks.self import load, outcomes, verdicts
from benchmarks.self.outcomes import FIT, HELD_OUT, Key, Line
from benchmarks.self.programs import PROGRAMS, SEEDS
from tests.report.large_runs import write_zoo_run
from tests.stored_runs import COMPLETE, make_case, make_header

EXACT = (1.0, 1.02, 0.98)
"""fp32's losses, with a standard deviation of 0.02."""


@pytest.mark.parametrize(
    ("losses", "exact", "worse"),
    [
        (EXACT, EXACT, False),
        ((1.04, 1.06, 1.02), EXACT, False),
        ((1.07, 1.09, 1.05), EXACT, True),  # 7%, 3.5 standard deviations
        ((1.2, 1.4, 1.0), (1.0, 1.2, 0.8), True),  # 20% from every seed, one standard deviation
        ((1.3, 1.24, 0.8), (1.0, 1.2, 0.8), False),  # 11% on average, but not from every seed
        ((0.5, 0.5, 0.5), EXACT, False),
        ((1.0, None, 1.0), EXACT, True),
    ],
)
def test_a_loss_is_worse_by_the_rule(losses: list[float | None], exact: list[float | None], worse: bool) -> None:
    assert outcomes.is_worse(losses, exact) is worse


def line(precision: str, seed: int, fit: float, held_out: float | None, arm: str = "") -> Line:
    losses = {FIT: fit, HELD_OUT: held_out}
    return Line(program="GRU", precision=precision, seed=seed, arm=arm, commit="c", losses=losses)


def test_one_of_both_losses_makes_a_precision_unsafe_and_whole_seeds_count() -> None:
    lines = [line(BASELINE, seed, 1.0, 1.0, arm) for seed in SEEDS for arm in ("", CONTROL)]
    lines += [line("bf16_pure", seed, 1.0, 2.0) for seed in SEEDS]
    lines += [line("bf16_autocast", seed, 1.01, 1.0) for seed in SEEDS]
    lines += [line("fp16_pure", seed, 2.0, 2.0) for seed in SEEDS[:2]]
    listed = {outcome.precision: outcome for outcome in outcomes.outcomes(lines)}
    assert {name: outcome.safe for name, outcome in listed.items()} == {
        CONTROL: True, "bf16_pure": False, "bf16_autocast": True,
    }  # fmt: skip
    assert listed["bf16_pure"].ratios == {FIT: 1.0, HELD_OUT: 2.0}


def test_trainings_are_in_whole_seeds() -> None:
    planned = list(outcomes.trainings())
    assert len(planned) == len(set(planned)) == len(PROGRAMS) * len(SEEDS) * 8  # fp32 has a control
    assert [key.seed for key in planned] == sorted(key.seed for key in planned)


def test_an_ended_training_is_not_repeated_and_a_cut_line_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "proof.jsonl"
    whole = line(BASELINE, SEEDS[0], 1.0, 1.0)
    text = msgspec.json.encode(whole).decode()
    path.write_text(f"{text}\n{text[:50]}")
    assert outcomes.read(path, Line) == [whole]
    assert path.read_text() == f"{text}\n"
    asked: list[Key] = []
    both = [outcomes.key_of(whole), Key(program="GRU", precision="x", seed=1)]
    monkeypatch.setattr(outcomes, "trainings", lambda: both)
    monkeypatch.setattr(outcomes, "do_all", lambda _work, calls, *_: asked.extend(key for (key,) in calls))
    monkeypatch.setattr("sys.argv", ["outcomes", str(path)])
    outcomes.main()
    assert [key.precision for key in asked] == ["x"]


@pytest.mark.slow
def test_the_stores_benchmarks_run() -> None:
    assert load.measure(cases=20)["file bytes"] > 0
    assert load.compare_seconds(cases=20, rounds=4) > 0
    assert load.trend_seconds(runs=3, cases=20) > 0


def test_a_machine_that_is_never_fit_decides_only_what_is_far_beyond_what_held_it_up() -> None:
    _, *rows = verdicts.unfit_table(cells=20)
    shares = {line.split("|")[1].strip(): float(line.split("|")[2].split("%")[0]) for line in rows}
    assert [*shares] == ["identical", *(f"{slower:g} times as slow" for slower in verdicts.SLOWER[1:])]
    assert shares["identical"] == shares["1.9 times as slow"] == 0
    assert shares["15 times as slow"] == 100


NAMES = {"torchvision": ("resnet18", "resnet50", "vgg11", "alexnet"), "timm": tuple(f"net{one}" for one in range(45))}


def test_all_networks_are_measured_in_inference_and_a_third_in_training() -> None:
    planned = plan(NAMES)
    by_phase = {
        phase: [name for one in planned if one.phase == phase for name in one.workloads] for phase in atlas.PHASES
    }
    assert sorted(by_phase["inference"]) == sorted(f"{library}:{name}" for library in NAMES for name in NAMES[library])
    assert len(by_phase["training"]) == 2 + 15
    assert set(by_phase["training"]) < set(by_phase["inference"])
    assert max(len(one.workloads) for one in planned) == TOGETHER
    assert len({one.label for one in planned}) == len(planned) == 6


def stored(results: Path, label: str, workloads: tuple[str, ...], footer: Footer | None) -> str:
    header = replace(make_header(selection=Selection(workloads=list(workloads))), label=label, run=f"run{len(label)}")
    with RunWriter.create(results, header, [make_case(workload=name) for name in workloads]) as writer:
        if footer is not None:
            writer.append(footer)
    return header.run


def test_a_run_that_is_complete_is_left_and_one_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    first, second, *_ = plan(NAMES)
    words = command(first, tmp_path)
    assert words is not None
    assert words[3 : 3 + 4] == ["run", *first.workloads[:3]]
    assert words[words.index("--label") + 1] == first.label
    stored(tmp_path, first.label, first.workloads, COMPLETE)
    assert command(first, tmp_path) is None
    run = stored(
        tmp_path, f"{second.label}", second.workloads, Footer(ended="interrupted", finished_at="2026-01-31T12:05:00Z")
    )
    words = command(second, tmp_path)
    assert words is not None
    assert words[words.index("--resume") + 1] == run


def test_its_page_has_the_networks_that_gain_most_of_each_phase(tmp_path: Path) -> None:
    write_zoo_run(tmp_path, networks=120)
    said = page(tmp_path)
    parts = said.split("## In ")[1:]
    assert [part.partition("\n")[0] for part in parts] == ["inference", "training"]
    for part in parts:
        rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| timm:")]
        assert 10 < len(rows) <= MOST
        speeds = [float(row[2].partition("x")[0]) for row in rows if row[1] != "fp32"]
        assert speeds == sorted(speeds, reverse=True)

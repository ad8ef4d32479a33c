"""The proof of advice: its rule on planted outcomes, resumption, and the split of its programs."""

from pathlib import Path

import msgspec
import pytest

from ampbench.core.precisions import BASELINE
from ampbench.studies.training import CONTROL
from benchmarks.self import outcomes
from benchmarks.self.outcomes import FIT, HELD_OUT, Key, Line
from benchmarks.self.programs import PROGRAMS, SEEDS

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
    """A line of the GRU with these losses."""
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


def test_trainings_are_in_whole_seeds_and_parts_make_the_whole() -> None:
    planned = list(outcomes.trainings())
    assert len(planned) == len(set(planned)) == len(PROGRAMS) * len(SEEDS) * 8  # fp32 has a control
    assert [key.seed for key in planned] == sorted(key.seed for key in planned)
    assert sorted(planned[::2] + planned[1::2]) == sorted(planned)


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
    monkeypatch.setattr(
        outcomes, "trainings", lambda: [outcomes.key_of(whole), Key(program="GRU", precision="x", seed=1)]
    )
    monkeypatch.setattr(outcomes, "do_all", lambda _work, calls, *_: asked.extend(key for (key,) in calls))
    monkeypatch.setattr("sys.argv", ["outcomes", str(path)])
    outcomes.main()
    assert [key.precision for key in asked] == ["x"]

"""The proof of advice: its rule on planted outcomes, resumption, and the split of its programs."""

from pathlib import Path

import msgspec
import pytest
import torch
from msgspec import structs

from ampbench.core.precisions import BASELINE
from ampbench.records.measured import Score
from ampbench.studies.training import CONTROL
from benchmarks.self import outcomes
from benchmarks.self.outcomes import FIT, HELD_OUT, Key, Line
from benchmarks.self.programs import LAST, PROGRAMS, SEEDS, Lion, last_third

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


def test_an_ending_is_the_mean_of_the_last_quarter_and_none_where_a_loss_is_not_finite() -> None:
    scores = [Score(step=step, loss=float(step)) for step in (0, 50, 75, 100)]
    assert outcomes.ending(scores, 100) == 87.5
    assert outcomes.ending([*scores[:-1], structs.replace(scores[-1], loss=None)], 100) is None
    assert outcomes.ending([], 100) is None


def test_trainings_are_in_whole_seeds_and_parts_make_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [BASELINE, "bf16_pure", "fp16_pure"]
    monkeypatch.setattr(outcomes, "available", lambda: names)
    planned = list(outcomes.trainings())
    assert len(planned) == len(set(planned)) == len(PROGRAMS) * len(SEEDS) * (len(names) + 1)  # fp32 has a control
    assert [key.seed for key in planned] == sorted(key.seed for key in planned)
    assert sorted(planned[::2] + planned[1::2]) == sorted(planned)


def test_an_ended_training_is_not_repeated_and_a_cut_line_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "proof.jsonl"
    whole = line(BASELINE, SEEDS[0], 1.0, 1.0)
    text = msgspec.json.encode(whole).decode()
    path.write_text(f"{text}\n{text[:50]}")
    assert outcomes.read(path) == [whole]
    assert path.read_text() == f"{text}\n"
    asked: list[Key] = []
    monkeypatch.setattr(
        outcomes, "trainings", lambda: [outcomes.key_of(whole), Key(program="GRU", precision="x", seed=1)]
    )
    monkeypatch.setattr(outcomes, "train_all", lambda keys, *_: asked.extend(keys))
    monkeypatch.setattr("sys.argv", ["outcomes", str(path)])
    outcomes.main()
    assert [key.precision for key in asked] == ["x"]


def test_a_training_ends_as_a_line() -> None:
    ended = outcomes.trained(Key(program="graphs", precision=BASELINE, seed=SEEDS[0]), "c")
    assert [loss is not None and 0.2 < loss < 0.5 for loss in ended.losses.values()] == [True, True]


def test_the_last_third_is_fixed_by_the_names() -> None:
    assert last_third(reversed(list(PROGRAMS))) == LAST
    assert sorted(LAST) == [
        "decoder, Lion", "depthwise", "differential equation", "diffusion", "graphs", "images, tuned",
        "plain recurrent", "residual, group norm", "table, log(p + 1e-8)", "two views",
    ]  # fmt: skip
    assert len(PROGRAMS) >= 24
    assert len({program.kind for program in PROGRAMS.values()}) >= 8


def test_warm_up_and_schedule_share_the_rate() -> None:
    program = PROGRAMS["decoder"]
    shares = [program.share(step) for step in range(program.steps)]
    assert shares[0] == pytest.approx(1 / 21)
    assert max(shares) == pytest.approx(1.0, abs=0.03)
    assert shares[-1] < 1e-3


def test_lion_without_betas_moves_weights_against_the_sign_of_the_gradient() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    weight.grad = torch.tensor([0.5, -3.0, 0.0])
    Lion([weight], lr=0.25, betas=(0.0, 0.0)).step()
    assert weight.tolist() == [0.75, 2.25, 3.0]

"""Whether advice comes true: how outcomes are told, counted and read, from planted trainings and objections."""

import itertools
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec import structs

from ampbench.core.precisions import BASELINE
from ampbench.records.measured import Score
from ampbench.studies.training import CONTROL, Training
from benchmarks.self import outcomes
from benchmarks.self.outcomes import EARLY, LATE, PLACES, Line, Outcome
from benchmarks.self.trainings import NETWORKS, PROOF, Setting
from tests.stored_runs import make_divergence

USUAL = Setting(network="MLP", recipe="usual rate")
TENTH = Setting(network="MLP", recipe="a tenth")


def outcome(trains: bool | None, precision: str = "bf16_pure", setting: Setting = USUAL, **said: str) -> Outcome:
    """What became of a precision, with its objections by place."""
    ratio = {True: 1.0, False: 3.0, None: None}[trains]
    return Outcome(setting=setting, precision=precision, trains=trains, score="", ratio=ratio, objections=said)


def training(final: float, seed: int, arm: str = "", correct: int = 780) -> Training:
    """A training of 100 steps whose loss falls from 2 to `final`, with so many of 800 decisions right at its end."""
    losses: list[float | None] = [final + 2 * 0.9**step for step in range(100)]
    scores = [Score(step=step, loss=1.0, correct=right, decisions=800) for step, right in ((0, 80), (100, correct))]
    return Training(
        case_id="", seed=seed, arm=arm, steps=100, losses=losses, scores=scores,
        fits=[Score(step=0, loss=2.0), Score(step=100, loss=final)],
        weights_digest=f"w{seed}", inputs_digest=f"i{seed}",
    )  # fmt: skip


def rows_of(table: str) -> list[list[str]]:
    """The cells of a Markdown table, its header first."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "--:" not in line]


@pytest.mark.parametrize(
    ("trains", "objected", "cell"),
    [
        (True, False, "right: safe"),
        (True, True, "false alarm"),
        (False, True, "right: unsafe"),
        (False, False, "missed"),
        (None, True, "open"),
        (None, False, "open"),
    ],
)
def test_an_outcome_is_told_by_what_was_said_and_what_became_of_it(trains: bool, objected: bool, cell: str) -> None:
    assert outcome(trains, **({EARLY: "it loses its update"} if objected else {EARLY: ""})).cell(EARLY) == cell


def test_an_objection_counts_where_it_is_asked_for_and_one_place_is_enough() -> None:
    late = outcome(False, early="", late="it stands still")
    assert [late.cell(EARLY), late.cell(LATE), late.cell(*PLACES)] == ["missed", "right: unsafe", "right: unsafe"]


FOUND = [
    outcome(True, "bf16_autocast"),
    outcome(True, "bf16_autocast", TENTH, late="too large an error"),
    outcome(False, "bf16_pure", early="", late="it stands still"),
    outcome(False, "bf16_pure", TENTH),
    outcome(None, "fp16_pure", early="nan"),
]


def test_counts_are_of_all_safe_and_all_unsafe_by_where_advice_was_asked() -> None:
    header, *rows = rows_of(outcomes.counts_table(FOUND))
    assert header[3:] == ["missed", "false alarm", "open"]
    assert rows == [
        ["at the beginning", "2 of 2", "0 of 2", "2", "0", "1"],
        ["late", "1 of 2", "1 of 2", "1", "1", "1"],
        ["at both", "1 of 2", "1 of 2", "1", "1", "1"],
    ]


def test_counts_of_each_precision_add_up_to_those_of_all() -> None:
    header, *rows = rows_of(outcomes.precisions_table(FOUND))
    assert [row[0] for row in rows] == ["bf16_autocast", "bf16_pure", "fp16_pure"]
    whole = Counter(one.cell(*PLACES) for one in FOUND)
    for place, cell in enumerate(header[1:6], start=1):
        assert sum(int(row[place]) for row in rows) == whole[cell]
    assert [row[6] for row in rows] == ["0", "2", "0"]


def test_each_training_says_what_became_of_each_precision_and_what_was_said() -> None:
    header, usual, tenth = rows_of(outcomes.settings_table(FOUND))
    assert header == ["training", "bf16_autocast", "bf16_pure", "fp16_pure"]
    assert usual == [
        "MLP, usual rate", "1x trains, within budget", "3x does not, refused late", "– open, refused early"
    ]  # fmt: skip
    assert tenth == ["MLP, a tenth", "1x trains, refused late", "3x does not, within budget", "–"]


def test_every_objection_is_listed_with_its_place_and_outcome() -> None:
    _, *rows = rows_of(outcomes.reasons_table(FOUND))
    assert rows == [
        ["MLP, a tenth", "bf16_autocast", "late", "too large an error", "false alarm"],
        ["MLP, usual rate", "bf16_pure", "late", "it stands still", "right: unsafe"],
        ["MLP, usual rate", "fp16_pure", "early", "nan", "open"],
    ]


def test_trainings_that_end_at_another_loss_are_unsafe_and_those_as_good_safe() -> None:
    finals = {
        (BASELINE, ""): (0.1, (0, 0, 0)),
        (BASELINE, CONTROL): (0.1001, (1, -1, 0)),
        ("bf16_autocast", ""): (0.1002, (0, 1, -1)),
        ("bf16_pure", ""): (0.5, (-40, -41, -39)),
    }
    lines = []
    for (precision, arm), (final, more) in finals.items():
        case_id = outcomes.case_of(USUAL, precision).case_id
        for seed in PROOF.seeds:
            one = training(final * (1 + 0.001 * seed * len(precision)), seed, arm, 780 + more[seed])
            found_one = structs.replace(one, case_id=case_id)
            lines.append(Line(setting=USUAL, commit="c", precision=precision, training=found_one))
    found = {one.precision: one for one in outcomes.outcomes(lines)}
    assert set(found) == {"bf16_autocast", "bf16_pure"}
    assert [one.trains for one in found.values()] == [True, False]
    assert found["bf16_pure"].ratio == pytest.approx(5, rel=0.05)
    assert found["bf16_pure"].cell(*PLACES) == "missed"  # nothing was said of it


def test_the_rate_and_length_of_a_setting_are_its_networks_and_its_recipes() -> None:
    network = NETWORKS["MLP"]
    assert (USUAL.rate, USUAL.steps) == (network.rate, network.steps)
    assert (TENTH.rate, TENTH.steps) == (network.rate * 0.1, network.steps * 2)
    assert len(PROOF.settings) == len({one.name for one in PROOF.settings}) == 12


def test_what_is_trained_is_known_by_its_key_and_seeds_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [BASELINE, "bf16_pure", "fp16_pure"]
    monkeypatch.setattr(outcomes, "available", lambda _: names)
    planned = list(outcomes._trainings(PROOF))
    assert len(planned) == len(set(planned)) == 12 * len(PROOF.seeds) * (len(names) + 1)  # fp32 has a control
    fast = [key for key in planned if key[2] != "fp16_pure"]
    assert planned[: len(fast)] == fast
    assert [key[3] for key in fast] == sorted(key[3] for key in fast)
    one = Line(setting=TENTH, commit="c", precision=BASELINE, training=training(0.1, 2, CONTROL))
    assert outcomes._key(one, PROOF) in planned
    step = Line(setting=TENTH, commit="c", precision="bf16_pure", place=LATE)
    assert outcomes._key(step, PROOF) in list(outcomes._steps(PROOF))


def test_a_line_that_a_killed_run_left_unfinished_is_dropped_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trained.jsonl"
    whole = Line(setting=USUAL, commit="c", precision=BASELINE, training=training(0.1, 0))
    text = msgspec.json.encode(whole).decode()
    path.write_text(f"{text}\n{text[:50]}")
    assert list(outcomes._read(path)) == [whole]
    assert path.read_text() == f"{text}\n"
    assert list(outcomes._read(tmp_path / "none.jsonl")) == []


def test_what_the_default_scale_is_too_large_for_is_trained_again_from_the_scale_that_settled() -> None:
    def line(precision: str, found: Training, init_scale: float | None = None) -> Line:
        found = structs.replace(found, case_id=outcomes.case_of(USUAL, precision).case_id)
        return Line(setting=USUAL, commit="c", precision=precision, training=found, init_scale=init_scale)

    lines = []
    for precision, scale in (("fp16_master", 32768.0), ("fp16_autocast", 65536.0), (BASELINE, None)):
        step = make_divergence(outcomes.case_of(USUAL, precision), scaler_scale=scale)
        lines += [
            Line(setting=USUAL, commit="c", precision=precision, place=place, divergence=step) for place in PLACES
        ]
    for seed in PROOF.seeds:
        lines += [line(BASELINE, training(0.1 + 0.001 * seed, seed, arm)) for arm in ("", CONTROL)]
        skipping = structs.replace(
            training(0.5 + 0.01 * seed, seed, correct=740 - seed), scales=[(0, 65536.0), (1, 32768.0)]
        )
        settled = structs.replace(training(0.1001 + 0.001 * seed, seed), scales=[(0, 32768.0)])
        lines += [line("fp16_master", skipping), line("fp16_master", settled, 32768.0)]
    assert outcomes.settled_scales(lines) == {(USUAL, "fp16_master"): 32768.0}
    planned = outcomes._from_settled(lines, PROOF)
    assert planned == [outcomes._key(one, PROOF) for one in lines if one.init_scale is not None]
    _, row = rows_of(outcomes.settled_table(lines, PROOF))
    assert row == [
        "MLP, usual rate", "fp16_master", "32,768", "5.05x does not", "1, 1, 1", "1x trains", "0, 0, 0",
    ]  # fmt: skip
    counts = rows_of(next(itertools.islice(outcomes.tables(lines), 1, None)))[1]
    assert counts[0:3] == ["at the beginning", "0 of 0", "1 of 1"]  # the table is of the default scale alone


@pytest.mark.parametrize(("given", "begun"), [(None, 65536.0), (4096.0, 4096.0)])
def test_a_training_begins_at_the_scale_that_it_is_given(
    given: float | None, begun: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales = []

    def train(workload: object, case: object, device: object, start: Training) -> Training:
        scales.append(torch.amp.GradScaler("cpu").get_scale())
        return training(0.1, start.seed)

    monkeypatch.setattr(outcomes, "train", train)
    (line,) = outcomes._do("logistic", "usual rate", "fp16_master", 10, "", "", given, "c")
    assert (scales, line.init_scale) == ([begun], given)
    assert torch.amp.GradScaler("cpu").get_scale() == 65536.0

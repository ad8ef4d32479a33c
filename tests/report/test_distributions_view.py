import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from ampbench.records.measured import Failure, Fitness
from ampbench.report.distributions import APART, IN_BLOCKS, SAID, distributions
from ampbench.report.material import Material
from ampbench.report.page import chart_payload, packed
from ampbench.show.page import View
from tests.compared_runs import BF16, FP32, Times, arms, make_run, noisy, rounds_of
from tests.report.materials import make_material, section_of
from tests.stored_runs import make_case, make_header, make_round

NOISY = [1.0e-3, 1.02e-3, 1.02e-3, 1.05e-3]


def shown(material: Material) -> View:
    view = distributions(material)
    assert view is not None
    return view


def drawn(view: View, case: int) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the medians and the rounds that the chart shows of a case."""
    rows = [row for row in view.datasets["distributions"] if row["case"] == str(case)]
    return [row for row in rows if row["line"] is None], [row for row in rows if row["line"] is not None]


def session() -> Material:
    """Return the material of an interleaved session in which fp32 became 10% slower, which fresh rounds confirmed."""
    old, new = arms()
    times = noisy(2e-3, seed=3)
    baseline = make_run(Times((BF16, times), (FP32, noisy(1e-3, seed=1))), control=times, header=old)
    candidate = make_run(Times((BF16, times), (FP32, noisy(1.1e-3, seed=2))), header=new)
    runs = [
        replace(run, rounds=[*run.rounds, *rounds_of(FP32, noisy(seconds, 10, seed=4), confirmation=True)])
        for run, seconds in ((baseline, 1e-3), (candidate, 1.1e-3))
    ]
    return make_material(runs[1], baseline=runs[0])


def test_every_round_is_drawn_at_its_fastest_sample():
    view = shown(make_material(make_run(Times((FP32, NOISY), (BF16, [2e-3])))))
    assert [(row["line"], row["seconds"]) for row in drawn(view, 0)[1]] == [
        (f"round {number}", seconds) for number, seconds in enumerate(NOISY)
    ]
    assert [row["seconds"] for row in drawn(view, 1)[1]] == [2e-3]


def test_the_median_and_its_interval_are_those_of_the_table_of_cases():
    material = make_material(make_run(Times((FP32, NOISY))))
    ((middle,), _) = drawn(shown(material), 0)
    row = material.cases[0].row
    for name in ("low", "high"):
        assert middle[name] == pytest.approx(row[f"seconds_{name}"], rel=1e-4)
    assert middle["seconds"] == pytest.approx(row["seconds_median"], rel=1e-4)


def test_two_rounds_have_no_interval():
    ((middle,), _) = drawn(shown(make_material(make_run(Times((FP32, NOISY[:2]))))), 0)
    assert (middle["low"], middle["left"]) == (None, None)


def test_a_wide_interval_is_drawn_to_the_edge_and_told_whole():
    ((middle,), rounds) = drawn(shown(make_material(make_run(Times((FP32, [1e-3, 1e-3, 9e-3]))))), 0)
    assert middle["high"] > 0.02 > middle["right"] > max(row["seconds"] for row in rounds)


def test_the_data_grow_with_the_cases_and_not_with_their_samples():
    def size(samples: int) -> int:
        cases = [make_case(batch_size=number + 1) for number in range(300)]
        run = make_run(Times(*((case, [1e-3]) for case in cases)))
        build = [noisy(1e-3, samples, 0.02, seed) for seed in range(10)]
        rounds = [make_round(case, number=number, samples=[build[number]]) for case in cases for number in range(10)]
        return len(packed(chart_payload([shown(make_material(replace(run, rounds=rounds)))])))

    assert size(200) < 1.2 * size(30) < 1.2 * 300 * 700


def test_rounds_of_one_block_stand_together_and_the_baseline_first():
    view = shown(session())
    _, rounds = drawn(view, 1)
    assert [row["line"] for row in rounds[:4]] == ["baseline 0", "candidate 0", "baseline 1", "candidate 1"]
    _, controlled = drawn(view, 0)
    assert [(row["line"], row["arm"]) for row in controlled[:3]] == [
        ("baseline 0", "baseline"),
        ("control 0", "control"),
        ("candidate 0", "candidate"),
    ]
    assert [row["line"] for row in rounds[30:34]] == [
        "baseline 15",
        "candidate 15",
        "baseline 0, fresh",
        "candidate 0, fresh",
    ]
    assert [row["place"] for row in rounds] == list(range(52))


def test_rounds_of_runs_that_share_no_blocks_stand_apart():
    baseline = make_run(Times((FP32, NOISY)), control=NOISY)
    candidate = make_run(Times((FP32, NOISY)), control=NOISY, header=make_header(run="later"))
    view = shown(make_material(candidate, baseline=baseline))
    lines = [row["line"] for row in drawn(view, 0)[1]]
    assert lines[3:5] == ["baseline 3", "baseline control 0"]
    assert len(set(lines)) == 16
    assert APART in view.content["parts"][0].said


def test_rounds_of_one_block_are_said_to_be_of_one_time():
    assert IN_BLOCKS in shown(session()).content["parts"][0].said
    assert shown(make_material(make_run(Times((FP32, NOISY))))).content["parts"][0].said == [SAID]


def test_the_case_that_changed_is_drawn_first():
    view = shown(session())
    (chart,) = view.charts
    assert [choice.value for choice in chart.choices] == ["1", "0"]
    assert "slower" in chart.words
    assert "baseline median 1.00 ms" in chart.words


def test_rounds_on_an_unfit_machine_say_why():
    run = make_run(Times((FP32, NOISY)))
    rounds = [structs.replace(one, fitness=Fitness(other_share=0.4 if one.round == 1 else 0.0)) for one in run.rounds]
    material = make_material(replace(run, rounds=rounds))
    view = shown(material)
    assert [row["unfit"] for row in drawn(view, 0)[1]] == [None, "other processes used 40% of the CPU", None, None]


def test_a_case_that_fails_now_still_shows_the_baselines_rounds():
    baseline = make_run(Times((FP32, NOISY), (BF16, NOISY)))
    candidate = make_run(Times((FP32, NOISY), (BF16, [])))
    failure = Failure(case_id=BF16.case_id, stage="round", cause="crash", message="gone")
    candidate = replace(candidate, failures={BF16.case_id: failure})
    material = make_material(candidate, baseline=baseline)
    view = shown(material)
    assert {row["arm"] for row in drawn(view, 1)[1]} == {"baseline"}
    section_of(view, material)


def test_one_case_of_two_runs_is_told_apart_by_the_run():
    runs = [make_run(Times((FP32, NOISY)), header=make_header(run=name)) for name in ("first", "second")]
    material = make_material(*runs)
    other = replace(
        material, shown=[replace(material.shown[0], stored=run, rows=material.cases[0].shown.rows) for run in runs]
    )
    names = [choice.label for choice in shown(other).charts[0].choices]
    assert [name.rpartition(" · ")[2] for name in names] == ["first", "second"]


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_time_that_is_none_is_left_out(seconds: float):
    view = shown(make_material(make_run(Times((FP32, [seconds, *NOISY])))))
    assert len(drawn(view, 0)[1]) == 4
    json.dumps(list(view.datasets["distributions"]), allow_nan=False)


def test_without_rounds_there_is_no_section():
    run = make_run(Times((FP32, [])))
    assert distributions(make_material(run)) is None
    assert distributions(make_material(replace(run, readings={"seconds_median": {FP32.case_id: 1e-3}}))) is None
    assert distributions(make_material(replace(run, cases={}, memory={}, divergence={}))) is None
    assert distributions(Material(shown=[])) is None


def test_the_readmes_run_is_drawn_whole(readme_run: Material):
    view = shown(readme_run)
    rounds = [row for row in view.datasets["distributions"] if row["line"] is not None]
    assert len(rounds) == len(readme_run.shown[0].stored.rounds)
    assert section_of(view, readme_run).select("figure svg")

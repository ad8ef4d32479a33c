"""Headroom: the chart of magnitudes, what is told of each case, and what has no place."""

import json
from functools import partial

from ampbench.records.ranges import GRADIENT, WEIGHT, Magnitudes
from ampbench.report.material import Material, material_of
from ampbench.report.page import chart_payload, make_page, packed
from ampbench.report.views import explanation
from ampbench.show.charts import MODULES, thinned
from ampbench.studies.headroom import FITTING, FLUSHED, NONFINITE, OVERFLOWING
from tests.report.materials import page_of, part_of, rendered_by
from tests.report.ranged_runs import FP32, erring, headroom_run, low_run, ranged, spread
from tests.stored_runs import make_case

headroom = partial(part_of, "headroom")

CHART = "explanation-magnitudes"
OTHER = make_case("fp32", workload="other", phase="training")


def only(*passes, **options) -> Material:
    return material_of([], explanations=[headroom_run(*passes, **options)])


rendered = partial(rendered_by, explanation)


def rows_of(material: Material, case: str = "0-0") -> dict[str, dict]:
    """Return the drawn modules of one choice by name."""
    part = headroom(material)
    return {row["module"]: row for row in part.datasets[CHART] if row["case"] == case and row["module"]}


def test_what_overflows_flushes_or_is_not_finite_has_marks_of_its_own():
    found = ranged(
        spread("high", 0, 17), spread("small", -40, -20), spread("fine", -3, 2), spread("broken", -3, 2, nonfinite=2),
    )  # fmt: skip
    rows = rows_of(only(found))
    assert {name: (row["peak"], row["mark"]) for name, row in rows.items()} == {
        "high": (17, OVERFLOWING), "small": (-20, FLUSHED), "fine": (2, FITTING), "broken": (2, NONFINITE),
    }  # fmt: skip
    shapes = [layer for layer in headroom(only(found)).charts[0].spec["layer"] if "shape" in layer["encoding"]]
    domain = shapes[0]["encoding"]["shape"]["scale"]
    assert len(set(domain["range"])) == len(domain["domain"]) == 4  # nothing rests on colour alone


def test_each_kind_of_values_is_a_choice_and_what_there_is_none_of_is_not():
    found = ranged(
        spread("a", -3, 2), spread("a", -12, -6, GRADIENT), spread("a", -20, -9, GRADIENT, name="a.weight"),
        spread("a", -4, -3, WEIGHT, name="a.weight"), spread("b", -4, -2, WEIGHT, name="b.bias"),
    )  # fmt: skip
    (chart,) = headroom(only(found)).charts
    assert [one.label.partition(": ")[2] for one in chart.choices] == ["activations", "gradients", "weights"]
    assert rows_of(only(found), "0-2")["b"]["peak"] == -2


def test_the_chart_says_what_it_shows_without_javascript():
    page = rendered(only(ranged(spread("high", 0, 17), spread("", -3, 2))))
    figure = page.select_one(f"#chart-{CHART}")
    said = figure.select_one(".alt").get_text()
    assert "1 of 2 modules would overflow (worst high" in said
    assert said.strip().startswith("linear_chain fp32: activations")
    assert "the network itself" in figure.svg.get_text()
    assert "powers of two (log scale)" in figure.svg.get_text()
    assert "largest value, overflows fp16" in figure.svg.get_text()


def test_a_case_is_told_with_its_tables_and_predictions_that_failed():
    low = low_run(erring("high", overflowed=3), erring("low", overflowed=5))
    page = rendered(only(ranged(spread("high", 0, 17), spread("low", 0, 3), low_runs=[low])))
    detail = page.select_one("details.headroom")
    assert detail.has_attr("open")
    assert detail.summary.get_text().startswith("linear_chain fp32: fp16: 1 of 2 modules would overflow")
    text = detail.get_text()
    assert "fp16_autocast: " in text
    captions = [one.get_text() for one in detail.select("caption")]
    assert any(one.startswith("Largest values") for one in captions)
    assert any(one.startswith("Where predictions failed") for one in captions)
    assert "--all" not in text  # an option of the command line


def test_of_several_cases_the_largest_values_come_first():
    small, large = ranged(spread("a", -3, 2)), ranged(spread("a", 0, 20), case=OTHER)
    page = rendered(only(small, large, cases=(FP32, OTHER)))
    assert [one.get_text() for one in page.select("summary > strong")] == ["other fp32", "linear_chain fp32"]
    assert "Of 2 cases, 1 would have values overflow in fp16: other fp32." in page.get_text()


def test_a_pass_that_saw_nothing_or_zeros_alone_is_told_without_a_chart():
    for found in (ranged(), ranged(Magnitudes(module="a", kind="ReLU", what="activation", elements=4, zeros=4))):
        part = headroom(only(found))
        assert part.charts == []
        assert rendered(only(found)).select_one(".headroom") is not None


def test_of_very_many_modules_those_nearest_to_the_limits_are_drawn_in_their_order():
    found = ranged(*(spread(f"m{number}", -3, 20 if number == 777 else 2) for number in range(1000)))
    names = list(rows_of(only(found)))
    assert len(names) == MODULES
    assert "m777" in names
    assert names == sorted(names, key=lambda name: int(name[1:]))
    assert thinned([3, 1, 2], lambda value: value, most=2) == [3, 2]


def test_the_page_carries_no_histograms_and_stays_small():
    kinds = ("activation", "input", GRADIENT)
    found = [
        ranged(
            *(spread(f"layer{n // 50}.{n}.conv1", -30 + n % 7, 2 + n % 3, what) for n in range(200) for what in kinds)
        )
    ]
    view = explanation(only(*found))
    assert len(packed(chart_payload([view]))) < 25_000
    assert "counts" not in json.dumps(list(view.datasets.values()))


def test_a_run_of_headroom_alone_has_a_page():
    page = page_of(only(ranged(spread("a", -3, 2))))
    assert page.h1.get_text() == "linear_chain fp32: fp16: none of 1 module would overflow or flush"
    assert page.select_one(f"#chart-{CHART} svg") is not None


def test_hostile_names_are_text():
    found = ranged(spread("</script><b>x</b>", 0, 17, kind="<i>"))
    document = make_page(only(found))
    assert "<b>x</b>" not in document
    assert "<i>" not in document.replace('<i class="swatch">', "")

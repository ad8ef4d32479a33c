"""What passes say: headlines first, then tables that end where they say no more; and the same as rows."""

from functools import partial
from itertools import product

import pytest
from msgspec.structs import replace

from ampbench.cli.printing import OutputFormat, print_document
from ampbench.instruments.ranges.findings import arithmetic_said, headroom_said, low_run_said, origin_said
from ampbench.instruments.ranges.show import (
    ERRORS,
    SHOWN,
    VALUES,
    fits,
    headroom_section,
    origin_section,
    placed,
    seen_rows,
)
from ampbench.records.measured import OptimizerGroup, Recipe
from ampbench.records.ranges import (
    ACTIVATION,
    GRADIENT,
    INPUT,
    UPDATE,
    WEIGHT,
    FirstNonfinite,
    LowRun,
    OriginPass,
    SeenGradient,
    Swallowed,
)
from ampbench.show.document import Document, Section, records
from tests.instruments.ranges.range_records import error, passed, values
from tests.stored_runs import make_case

CASE = make_case()
SUMMED = passed(
    values("", 65536.0, kind="Sum"),
    low=LowRun(
        precision="fp16_pure",
        modules=[error("", None, kind="Sum", elements=1, overflowed=1)],
        first_nonfinite=FirstNonfinite(operation="aten.sum", module="", phase="forward", step=0, inputs_largest=16.0),
    ),
)


def lines(section: Section) -> list[str]:
    return [block.title for block in section.blocks if not block.rows]


def table(section: Section, title: str) -> list[dict[str, str]]:
    (block,) = [block for block in section.blocks if block.rows and block.title.startswith(title)]
    return [dict(zip(block.headers, row, strict=True)) for row in block.rows]


def titles(section: Section) -> list[str]:
    return [block.title for block in section.blocks if block.rows]


def test_a_sum_of_4096_sixteens_is_told_before_and_after_it_is_run():
    section = headroom_section(CASE, SUMMED)
    assert lines(section) == [
        (
            "fp16: 1 of 1 module would overflow (worst the network itself: largest activation is 1.0005 times what "
            "fp16 holds); none would flush."
        ),
        "bf16: none of 1 module would overflow or flush.",
        (
            "fp16_pure: overflow 1 predicted, 1 seen; no flushing predicted, none seen; aten.sum in the network "
            "itself, forward, step 1 makes the first value that is not finite from inputs of at most 16."
        ),
    ]
    (row,) = table(section, "Largest values")
    assert (row["module"], row["largest"], row["of fp16"]) == ("the network itself", "65,536", "1.0005x")
    assert row["fp16 would"] == "overflow"


def test_an_update_too_small_for_its_weight_is_told():
    found = passed(
        values("", 1.0, what=WEIGHT, name="w"),
        values("", 1.0, what=INPUT),
        values("", 1e-4, what=UPDATE, name="w"),
        swallowed=[Swallowed(parameter="w", dtype=dtype, moved=1, swallowed=1) for dtype in ("fp16", "bf16")],
    )
    assert headroom_said(found)[0].endswith("; stored in fp16, 100% of the weights that steps move would stand still")
    (row,) = table(headroom_section(CASE, found), "Weights that would not move")
    assert row == {"parameter": "w", "moved": "1", "in fp16": "100%", "in bf16": "100%"}


def test_values_within_a_factor_of_eight_are_near_and_told_beside_yes_and_no():
    found = passed(
        values("large", 8190.0), values("less", 8189.0), values("over", 65520.0),
        values("small", 7.9 * 2.0**-25), values("more", 2.0**-21), values("gone", 2.0**-26),
    )  # fmt: skip
    said = headroom_said(found)[0]
    assert "1 of 6 modules would overflow (worst over" in said
    assert "; 1 would flush (gone); 1 comes within a factor 8 of overflow (large); 1 comes within a factor 8" in said
    assert said.endswith("of flushing (small)")
    rows = {row["module"]: row["fp16 would"] for row in table(headroom_section(CASE, found), "Largest values")}
    assert rows == {
        "over": "overflow", "gone": "flush", "large": "nearly overflow", "small": "nearly flush",
        "less": "", "more": "",
    }  # fmt: skip
    assert list(rows)[:4] == ["over", "gone", "large", "small"]


def test_what_bf16_does_is_in_brackets_where_it_differs():
    found = passed(values("a", 1e38), values("b", 3.4e38 * 1.1), values("c", 1e30))
    rows = {row["module"]: row["fp16 would"] for row in table(headroom_section(CASE, found), "Largest values")}
    assert rows == {"a": "overflow (bf16 nearly overflow)", "b": "overflow (bf16, too)", "c": "overflow"}


def test_a_prediction_that_failed_within_the_margin_says_so():
    low = LowRun(precision="fp16_pure", modules=[error("a", overflowed=1), error("b", overflowed=1)])
    section = headroom_section(CASE, passed(values("a", 6e4), values("b", 1.0), low=low))
    assert [(row["module"], row["was predicted"]) for row in table(section, "Where predictions failed")] == [
        ("a", "near"), ("b", "no"),
    ]  # fmt: skip
    assert "overflow 0 predicted, 2 seen (0 right, 0 false, 2 missed, 1 of them near it)" in " ".join(lines(section))


def test_the_worst_is_the_largest_and_flushing_modules_are_named():
    found = passed(
        values("a", 1e5),
        values("b", 131008.0, what=INPUT),
        values("b", 1.0),
        *(values(name, 1e-9) for name in "cdef"),
    )
    said = headroom_said(found)[0]
    assert "2 of 6 modules would overflow (worst b: largest input is 2 times what fp16 holds)" in said
    assert "4 would flush (c, d, e and 1 more)" in said
    rows = table(headroom_section(CASE, found), "Largest values")
    assert [row["module"] for row in rows] == ["b", "a", "c", "d", "e", "f"]
    assert [row["fp16 would"] for row in rows][1:3] == ["overflow", "flush"]
    in_order = table(headroom_section(CASE, found, everything=True), "Largest values")
    assert [row["module"] for row in in_order] == list("abcdef")


def test_what_arithmetic_knows_of_the_optimizer_is_told_for_both_dtypes():
    group = OptimizerGroup(elements=8, lr=1e-4, weight_decay=0.01, decoupled=True, beta1=0.9, beta2=0.999, eps=1e-8)
    recipe = Recipe(optimizer="torch.optim.AdamW", groups=[group])
    found = passed(values("a", 1.0), recipe=recipe)
    assert lines(headroom_section(CASE, found))[2:] == [
        "Trained by AdamW lr=0.0001 weight_decay=0.01.",
        (
            "Stored in fp16, by arithmetic alone: weights become infinite or NaN where gradients were never over "
            "0.0055: their squares and eps are 0 (1e-08, not above 2^-25); weight decay does nothing (lr x weight "
            "decay is 1e-06, under 2^-12); an average of weights at decay 0.999 stands still up to 24.4% away (2^-12 "
            "/ 0.001); gradients summed over equal micro-batches stop growing after about 2,048 (2^11)."
        ),
        (
            "Stored in bf16, by arithmetic alone: weight decay does nothing (lr x weight decay is 1e-06, under 2^-9); "
            "the running mean of squared gradients cannot decay and only grows (1 - betas[1] is 0.001, under 2^-9); "
            "an average of weights at decay 0.999 stands still up to 195% away (2^-9 / 0.001); gradients summed over "
            "equal micro-batches stop growing after about 256 (2^8)."
        ),
    ]
    assert arithmetic_said(passed(values("a", 1.0))) == []


def test_a_value_near_the_end_is_named_though_it_fits():
    assert headroom_said(passed(values("a", 32752.0)))[0] == (
        "fp16: none of 1 module would overflow or flush (nearest a: largest activation is 50.0% of what fp16 holds); "
        "1 comes within a factor 8 of overflow (a)"
    )
    assert headroom_said(passed(values("a", 1.0)))[0] == "fp16: none of 1 module would overflow or flush"


def test_bf16_has_a_column_where_values_come_near_its_end():
    far, near = (table(headroom_section(CASE, passed(values("a", size))), "Largest values") for size in (1e6, 1e38))
    assert "of bf16" not in far[0]
    assert near[0]["of bf16"] == "29.5%"
    both = table(headroom_section(CASE, passed(values("a", 3.4e38))), "Largest values")
    assert both[0]["fp16 would"] == "overflow (bf16, too)"


def test_a_running_variance_is_not_the_worst():
    found = passed(
        values("bn", 1e7, what=WEIGHT, kind="BatchNorm2d", name="bn.running_var"),
        values("bn", 1e5, kind="BatchNorm2d"),
    )
    assert "largest activation is 1.5 times" in headroom_said(found)[0]


@pytest.mark.parametrize(
    ("gradients", "said"),
    [
        ([1.0], "gradients need no loss scale"),
        ([65520.0], "loss scale 2^-40 to 2^-1 keeps every gradient"),
        ([2.0**-10, 1.5 * 2.0**-28], "loss scale 2^3 to 2^25 keeps every gradient"),
        ([1.5 * 2.0**-30], "loss scale 2^5 to 2^45 keeps every gradient"),
        ([1.0, 2.0**-60], "50.0% of gradients flush, which no loss scale saves"),
        (
            [1.0, 1.5 * 2.0**-30, 2.0**-60, 1.0],
            "loss scale 2^5 to 2^15 loses the fewest gradients, 25.0%, 50.0% without it",
        ),
        ([0.0], "no gradient is finite and not zero"),
    ],
)
def test_loss_scales_are_part_of_the_headline(gradients, said):
    found = passed(values("a", 1.0), values("a", *gradients, what=GRADIENT))
    assert headroom_said(found)[0] == f"fp16: none of 1 module would overflow or flush; {said}"
    assert "gradient" not in headroom_said(passed(values("a", 1.0)))[0]


def test_values_that_fp32_cannot_hold_either_are_told_of():
    found = passed(values("mask", 1.0, float("-inf")), values("", 1.0))
    assert (
        headroom_said(found)[-1] == "fp32: some values within mask are not finite, as those of masks, and are left out"
    )


def test_where_a_prediction_failed_is_listed():
    low = LowRun(
        precision="bf16_pure",
        modules=[error("a", 0.5, overflowed=1), error("b", flushed=100)],
        notes=["dropout is off"],
    )
    section = headroom_section(CASE, passed(values("a", 1.0), values("b", 1.0), low=low))
    rows = table(section, "Where predictions failed")
    assert [(row["module"], row["what"], row["was predicted"], row["was seen"]) for row in rows] == [
        ("a", "overflow", "no", "yes"),
        ("b", "flushing", "no", "yes"),
    ]
    assert "overflow 0 predicted, 1 seen (0 right, 0 false, 1 missed)" in " ".join(lines(section))
    assert lines(section)[-1] == "bf16_pure: dropout is off."


def test_what_could_not_be_checked_is_counted_with_reasons():
    low = LowRun(
        precision="fp16_pure",
        modules=[
            error("a", None, elements=0, note="it draws"),
            error("b", None, elements=0, note="it draws"),
            error("c"),
        ],
    )
    section = headroom_section(CASE, passed(values("a", 1.0), low=low, notes=["fp16_autocast: skipped: no kernels."]))
    assert lines(section)[-2:] == [
        "fp16_autocast: skipped: no kernels.",
        "fp16_pure: 2 of 3 modules could not be checked: it draws (2).",
    ]


def test_gradients_are_said_against_what_was_predicted():
    found = passed(values("fc", 1.0), values("fc", 2.0**-30, 1.0, what=GRADIENT, name="fc.weight"))
    low = LowRun(
        precision="fp16_autocast",
        modules=[error("fc")],
        lowered_weights=["fc.weight"],
        gradients=[SeenGradient(parameter="fc.weight", elements=4, flushed=1, nonfinite=0)],
        scaler_scale=1.0,
    )
    said = low_run_said(found, low)
    assert "gradients at loss scale 1: 50.0% predicted to flush, 25.0% seen" in said
    assert "all values of the whole step are finite" in said
    section = headroom_section(CASE, passed(*found.magnitudes, low=low))
    (row,) = table(section, "Gradients in the low precisions")
    assert (row["predicted"], row["seen"], row["not finite"]) == ("50.0%", "25.0%", "0")


def test_gradients_after_a_forward_pass_that_overflows_are_not_judged():
    found = passed(values("fc", 1e6), values("fc", 2.0**-30, what=GRADIENT, name="fc.weight"))
    low = LowRun(
        precision="fp16_pure",
        modules=[error("fc", overflowed=1)],
        gradients=[SeenGradient(parameter="fc.weight", elements=4, flushed=0, nonfinite=4)],
        first_nonfinite=FirstNonfinite(operation="aten.mm", module="fc", phase="forward", step=0),
    )
    said = low_run_said(found, low)
    assert said.endswith("so are gradients of 1 of 1 parameter")
    assert "predicted to flush" not in said
    assert "Gradients in the low precisions" not in titles(headroom_section(CASE, passed(*found.magnitudes, low=low)))


ENDED = "the step ended with an error, so that it was not seen as a whole: RuntimeError: no kernel"


def test_a_step_that_ends_with_an_error_says_so():
    low = LowRun(precision="fp16_autocast", error="RuntimeError: no kernel")
    said = low_run_said(passed(values("a", 1.0)), low)
    assert said == f"fp16_autocast: {ENDED}; no module was compared"


def test_what_was_seen_before_an_error_is_said_to_be_until_then():
    low = LowRun(precision="fp16_pure", error="RuntimeError: no kernel", modules=[error("a")])
    said = low_run_said(passed(values("a", 1.0)), low)
    assert said.startswith(f"fp16_pure: {ENDED}; of modules by themselves, on exact inputs: no overflow")


def test_an_origin_in_training_says_who_names_the_gradient_that_errs_most():
    training = make_case("fp16_autocast", workload="net", parameters={}, phase="training", batch_size=None)
    found = OriginPass(case_id=training.case_id, modules=[], output_rel_l2=1e-3)
    told = [block.title for block in origin_section(training, found).blocks]
    assert any("`ampbench show RUN --case CASE` names it" in title for title in told)
    assert not any("show RUN" in block.title for block in origin_section(CASE, found).blocks)


def test_a_step_that_was_refused_is_not_called_finite():
    low = LowRun(precision="fp16_autocast", modules=[error("a")], notes=["modules compiled by torch.compile"])
    assert low_run_said(passed(values("a", 1.0)), low).endswith("the whole step was not seen")


def test_empty_passes_say_that_there_is_nothing_to_say():
    section = headroom_section(CASE, passed())
    assert lines(section) == ["Nothing can be said: no module gave a floating value."]
    assert titles(section) == []
    empty = origin_section(CASE, OriginPass(case_id="case"))
    assert lines(empty) == ["Nothing could be compared: no module gave a floating value."]
    assert titles(empty) == []


def test_a_module_without_finite_values_is_no_row():
    section = headroom_section(CASE, passed(values("a", float("nan")), values("b")))
    assert "Largest values" not in titles(section)


# Origin

FAILING = OriginPass(
    case_id="case",
    modules=[
        error("a", 1e-4, total_rel_l2=1e-4),
        error("b", None, elements=0, note="it draws"),
        error("c", 3e-3, total_rel_l2=5e-3),
        error("", None, overflowed=100),
        error("d", None, overflowed=50, inputs_overflowed=7),
        error("e", 1.0, flushed=100),
    ],
)


def test_an_origin_is_told_by_what_modules_err_by_themselves():
    assert origin_said(FAILING) == [
        "the output's error is undefined, as values are not finite",
        "the network itself overflows by itself (1 of 5 modules)",
        "d is handed what overflows already (1 of 5 modules)",
        "e flushes at least 1% of its outputs to zero (1 of 5 modules)",
        "most by themselves err e (Linear, 1.0e+00), c (Linear, 3.0e-03), a (Linear, 1.0e-04)",
        "1 of 6 modules not compared: it draws (1)",
    ]


def test_an_origin_without_events_says_how_far_the_output_errs():
    calm = OriginPass(case_id="case", modules=[error("a", 0.0)], output_rel_l2=2e-3, notes=["dropout is off"])
    assert lines(origin_section(CASE, calm)) == [
        "The output errs by 2.0e-03 (relative L2 error against fp32).",
        "No module errs by itself.",
        "None of 1 module overflows or flushes on exact inputs.",
        "Dropout is off.",
    ]


def test_an_origin_says_where_errors_grow_that_no_module_makes():
    grown = [error("waves", 2e-3, total_rel_l2=2e-3), error("trunk", 2e-3, total_rel_l2=4e-2)]
    found = OriginPass(case_id="case", modules=grown, output_rel_l2=4e-2)
    where = (
        "the error grows most before trunk or in it: to 4.0e-02, from at most 2.0e-03 in the modules that ran before"
    )
    said = f"{where}, and 2.0e-03 is its own; what runs there magnifies errors, or rounds outside of modules"
    assert said in origin_said(found)
    added = [error("a", 2e-3, total_rel_l2=2e-3), error("b", 2e-3, total_rel_l2=5e-3)]
    made = [error("a", 2e-3, total_rel_l2=2e-3), error("b", 4e-2, total_rel_l2=4e-2)]
    for calm in (added, made, grown[1:], [error("a", None), *grown[1:]]):
        assert not [line for line in origin_said(replace(found, modules=calm)) if "grows" in line]


def test_modules_are_ranked_or_in_the_order_of_running():
    ranked = table(origin_section(CASE, FAILING), "Modules that err most by themselves")
    assert [row["#"] for row in ranked] == ["3", "4", "5", "2", "0"]
    assert [row["remark"] for row in ranked] == ["", "given inf", "", "", ""]
    assert (ranked[1]["overflowed"], ranked[2]["flushed"], ranked[3]["inherited"]) == ("50.0%", "100%", "4.0e-03")
    everything = table(origin_section(CASE, FAILING, everything=True), "Modules in the order of running")
    assert [row["module"] for row in everything] == ["a", "b", "c", "the network itself", "d", "e"]
    assert (everything[1]["own"], everything[1]["overflowed"], everything[1]["remark"]) == ("–", "–", "it draws")


def test_where_everything_is_undefined_nothing_is_called_zero():
    found = OriginPass(case_id="case", modules=[error("a", None), error("b", None)])
    assert origin_said(found)[0] == "the output's error is undefined"
    rows = table(origin_section(CASE, found), "Modules that err most by themselves")
    assert {row[column] for row in rows for column in ("own", "total", "inherited")} == {"–"}


# Many modules


def test_a_thousand_modules_are_cut_to_the_worst_unless_all_are_asked_for():
    names = [f"layers.{place}.attention.projection" for place in range(1000)]
    rows = [values(name, float(place + 1)) for place, name in enumerate(names)]
    low = LowRun(precision="fp16_pure", modules=[error(name, flushed=1) for name in names])
    found = passed(*rows, low=low)
    section = headroom_section(CASE, found)
    shown = table(section, "Largest values")
    assert len(shown) == SHOWN
    assert shown[0]["module"] == names[-1]
    assert all(block.note.endswith("--all lists the rest") for block in section.blocks if block.rows)
    assert len(table(section, "Where predictions failed")) == SHOWN
    assert len(table(headroom_section(CASE, found, everything=True), "Largest values")) == 1000
    origin = OriginPass(case_id="case", modules=low.modules)
    assert len(table(origin_section(CASE, origin), "Modules that err")) == SHOWN
    assert len(table(origin_section(CASE, origin, everything=True), "Modules in the")) == 1000


def test_sections_fit_a_terminal_of_a_hundred_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    name = "encoder.layers.encoder_layer_11.self_attention.out_proj"
    found = passed(
        values(name, 1e5, kind="NonDynamicallyQuantizableLinear"),
        values(name, 1e-3, 1e-9, what=GRADIENT, name=f"{name}.weight"),
        swallowed=[Swallowed(parameter=f"{name}.weight", dtype="fp16", moved=12_345_678, swallowed=1)],
        low=LowRun(
            precision="fp16_autocast",
            modules=[error(name, 0.5, flushed=50, kind="NonDynamicallyQuantizableLinear")],
            gradients=[SeenGradient(parameter=f"{name}.weight", elements=12_345_678, flushed=1, nonfinite=1)],
        ),
    )
    origin = OriginPass(case_id="case", modules=[*FAILING.modules, error(name, 1e-3, kind="MultiheadAttention")])
    for everything, format in product((False, True), (OutputFormat.TABLE, OutputFormat.MARKDOWN)):
        sections = [
            headroom_section(CASE, found, everything=everything), origin_section(CASE, origin, everything=everything),
        ]  # fmt: skip
        print_document(Document(sections=partial(list, sections), data=dict, columns=[], rows=list), format)
        said = capsys.readouterr().out
        assert "encoder_layer_11." in said
        if format is OutputFormat.TABLE:
            assert max(map(len, said.splitlines())) <= 100


def test_every_column_of_numbers_stands_to_the_right():
    every = [headroom_section(CASE, SUMMED), origin_section(CASE, FAILING)]
    blocks = [block for section in every for block in section.blocks]
    texts = {header for block in blocks for header in block.headers if header not in block.numbers}
    assert texts == {"module", "kind", "values", "fp16 would", "remark"}


HEADROOM = [
    *("module", "kind", "what", "name", "elements", "zeros", "nonfinite", "largest"),
    *("fp16_reach", "fp16_overflow", "fp16_flushed", "fp16_subnormal", "fp16_swallowed"),
    *("bf16_reach", "bf16_overflow", "bf16_flushed", "bf16_subnormal", "bf16_swallowed"),
]


def test_a_row_tells_how_values_fit_into_each_format():
    (row,) = records(VALUES, fits(passed(values("fc", 131072.0, 1e-9, 0.0, float("inf"), 2.0**-15))))
    assert list(row) == HEADROOM
    assert (row["module"], row["what"], row["elements"], row["zeros"], row["nonfinite"]) == ("fc", ACTIVATION, 5, 1, 1)
    assert row["largest"] == 131072.0
    assert row["fp16_reach"] == pytest.approx(131072 / 65504)
    assert (row["fp16_overflow"], row["fp16_flushed"], row["fp16_subnormal"]) == (0.25, 0.25, 0.25)
    assert (row["bf16_overflow"], row["bf16_flushed"]) == (0.0, 0.0)
    assert row["fp16_swallowed"] is None


def test_only_updates_have_a_share_that_is_swallowed():
    found = passed(
        values("", 1.0, what=WEIGHT, name="w"),
        values("", 1e-4, what=UPDATE, name="w"),
        values("", 0.0, what=UPDATE, name="still"),
        swallowed=[
            Swallowed(parameter="w", dtype="fp16", moved=4, swallowed=4),
            Swallowed(parameter="w", dtype="bf16", moved=4, swallowed=1),
            Swallowed(parameter="still", dtype="fp16", moved=0, swallowed=0),
        ],
    )
    rows = records(VALUES, fits(found))
    assert [row["fp16_swallowed"] for row in rows] == [None, 1.0, None]
    assert rows[1]["bf16_swallowed"] == 0.25


def test_predictions_and_what_was_seen_have_a_row_per_precision_and_module():
    low_runs = [
        LowRun(precision="fp16_pure", modules=[error("fc", None, overflowed=1)]),
        LowRun(precision="bf16_pure", modules=[error("fc", None, elements=0, note="it draws")]),
    ]
    rows = seen_rows(passed(values("fc", 1e6), low_runs=low_runs))
    assert [row["precision"] for row in rows] == ["fp16_pure", "bf16_pure"]
    assert [row["overflow_predicted"] for row in rows] == [ACTIVATION, ""]
    assert [row["overflow_seen"] for row in rows] == [True, None]
    assert [row["flush_seen"] for row in rows] == [False, None]
    assert [row["note"] for row in rows] == ["", "it draws"]


def test_errors_have_a_row_per_module_in_the_order_of_running():
    found = OriginPass(
        case_id="case",
        modules=[
            error("a", 3e-3, total_rel_l2=5e-3, sampled=64),
            error("", None, elements=0, note="it writes into its inputs"),
            error("b", None, overflowed=2, flushed=1, inputs_overflowed=3),
        ],
    )
    rows = records(ERRORS, placed(found))
    assert [row["place"] for row in rows] == [0, 1, 2]
    assert [row["module"] for row in rows] == ["a", "", "b"]
    assert rows[0]["inherited"] == pytest.approx(4e-3)
    assert [row["inherited"] for row in rows[1:]] == [None, None]
    assert [rows[2][name] for name in ("overflowed", "flushed", "inputs_overflowed")] == [2, 1, 3]
    assert [row["sampled"] for row in rows] == [64, 0, 0]
    assert rows[1]["note"] == "it writes into its inputs"

"""A search in blocks and rows: what is kept, what sets come to, nothing invented where nothing is known."""

from msgspec import structs

from ampbench.instruments.keep_fp32.findings import closest, meets, points, said
from ampbench.instruments.keep_fp32.show import COLUMNS, kept, kept_rows, section, weighed
from ampbench.show.document import records
from tests.instruments.keep_fp32 import searches
from tests.instruments.keep_fp32.searches import CASE, SPACE, TRIALS, found


def test_a_section_has_the_sentences_what_is_kept_and_the_sets() -> None:
    made = section(CASE, found("norm"), SPACE, TRIALS)
    assert made.title == "net · fp16_autocast · inference · cpu"
    assert made.blocks[0].title.startswith("1 of 4 modules kept in fp32 (norm) brings ")
    assert made.blocks[0].title.endswith(".")
    assert [block.title for block in made.blocks if block.rows] == ["Kept in fp32", "Error, time and memory"]


def test_the_modules_kept_stand_with_their_own_error_and_size() -> None:
    (block,) = kept(found("body", "norm"), SPACE)
    assert [row[:4] for row in block.rows] == [
        ["body.0", "Conv2d", "50.0% overflow", "1.00 ms"],
        ["body.1", "BatchNorm2d", "–", "100 us"],
        ["norm", "LayerNorm", "2.0e-03", "10.0 us"],
    ]
    assert block.note == "whole, with what they do between their modules: body"


def test_a_module_with_shared_parameters_names_all_and_has_an_error_only_if_one_was_measured() -> None:
    (block,) = kept(found("embed", "head"), SPACE)
    assert [row[:3] for row in block.rows] == [["embed, head", "Embedding", "–"]]
    assert block.note == ""


def test_the_whole_network_is_kept_by_itself() -> None:
    rows = kept_rows(SPACE, [""])
    assert len(rows) == 4
    (block,) = kept(found(""), SPACE)
    assert block.note == ""


def test_where_nothing_is_kept_there_is_no_table_of_it() -> None:
    assert kept(found(), SPACE) == []
    assert kept(found(found=None), SPACE) == []


def test_a_long_table_is_cut_and_says_so_unless_all_is_asked_for() -> None:
    units = [structs.replace(SPACE.units[0], modules=[f"deep.{place}"]) for place in range(30)]
    space = structs.replace(SPACE, units=units, containers=["", "deep"])
    (block,) = kept(found(""), space)
    assert len(block.rows) == 12
    assert block.note == "12 of 30, --all lists the rest"
    (block,) = kept(found(""), space, everything=True)
    assert (len(block.rows), block.note) == (30, "")


def test_sets_stand_in_their_order_with_the_found_one_marked() -> None:
    (block,) = weighed(found("norm"), SPACE, TRIALS)
    assert block.headers == ["kept", "modules", "error", "budget", "step", "time ratio", "peak", "front"]
    assert [row[0] for row in block.rows] == ["none", "norm ←", "body, norm", "all"]
    assert block.rows[1] == [
        "norm ←", "1", "1.9e-03", "met", "1.08 ms", "1.04x 1.04–1.04", "1.00 MiB", "yes",
    ]  # fmt: skip


def test_a_set_is_named_by_its_first_modules_and_all_has_them_whole() -> None:
    made = found().weighing
    assert made is not None
    none, *_, whole = made.weighed
    three = structs.replace(made, weighed=[none, searches.weighed(["body", "norm", "head"], 1.5e-3), whole])
    search = found("body", "norm", "head", weighing=three)
    (block,) = weighed(search, SPACE, TRIALS)
    assert [row[0] for row in block.rows] == ["none", "body, norm and 1 more ←", "all"]
    assert block.note.endswith("; --all names all modules of a set")
    (block,) = weighed(search, SPACE, TRIALS, everything=True)
    assert [row[0] for row in block.rows] == ["none", "body, norm, head ←", "all"]
    assert "--all" not in block.note


def test_a_set_that_missed_the_budget_on_another_batch_says_so() -> None:
    refuted = structs.replace(TRIALS[2], output_rel_l2=2.1e-3, batch=2)
    confirmed = [structs.replace(TRIALS[3], output_rel_l2=error, batch=1) for error in (1.2e-3, 1.9e-3, 1e-3)]
    search = found("body", "norm", units=3, refuted=[refuted], confirmed=confirmed)
    (block,) = weighed(search, SPACE, TRIALS)
    assert [row[3] for row in block.rows] == ["missed", "missed elsewhere", "met", "met"]
    told = said(search, SPACE, TRIALS)
    assert "confirmed on 3 other batches: at worst the output error is 1.9e-03 (budget 2.0e-03)" in told
    assert (
        "1 other set met it on the first batch and not on another; nearest norm, where the output error is 2.1e-03 "
        "(budget 2.0e-03)"
    ) in told
    assert closest(structs.replace(search, found=None), TRIALS[:3]) == TRIALS[1]
    assert closest(structs.replace(search, found=None), TRIALS[2:3]) == refuted


def test_what_arrives_of_an_update_is_told_where_it_is_bounded() -> None:
    kept_shares = [0.18, 1.0, 0.99, 1.0]
    trials = [structs.replace(one, update_kept=share) for one, share in zip(TRIALS, kept_shares, strict=True)]
    search = found("norm", min_update_kept=0.98)
    (block,) = weighed(search, SPACE, trials)
    assert block.headers[2:5] == ["error", "arrives", "budget"]
    assert [row[3] for row in block.rows] == ["18.0%", "99.0%", "100%", "100%"]
    assert said(search, SPACE, trials)[0].endswith(
        "and the share of the update that arrives from 18.0% to 99.0% (at least 98.0%)"
    )
    unknown = [structs.replace(one, update_undefined="no fp32 steps") for one in TRIALS]
    assert "what arrives of an update is not bounded: no fp32 steps" in said(search, SPACE, unknown)
    assert meets(search, unknown[2])
    lost = structs.replace(TRIALS[2], update_nonfinite=3, update_undefined="3 parameter elements are not finite")
    assert not meets(search, lost)
    assert not meets(search, structs.replace(TRIALS[2], update_kept=0.97))
    assert meets(search, structs.replace(TRIALS[2], update_kept=1.4))


def test_gradients_have_a_column_in_training_only() -> None:
    trials = [structs.replace(one, grad_rel_l2=1e-2) for one in TRIALS]
    (block,) = weighed(found("norm", max_gradient_error=1e-1), SPACE, trials)
    assert block.headers[2:4] == ["error", "gradients"]
    assert all(len(row) == len(block.headers) for row in block.rows)


def test_without_a_weighing_there_is_no_table_of_sets() -> None:
    assert weighed(found("norm", weighing=None), SPACE, TRIALS) == []


def test_rows_are_plain_values_under_their_columns() -> None:
    rows = records(COLUMNS, points(found("norm"), SPACE, TRIALS))
    assert [row["kept"] for row in rows] == ["", "norm", "body norm", "(all)"]
    (_, *_, whole) = rows
    assert (whole["kept"], whole["modules"], whole["found"]) == ("(all)", 4, False)
    assert (whole["output_rel_l2"], whole["grad_rel_l2"], whole["meets_budget"]) == (4e-7, None, True)
    assert (whole["update_kept"], whole["update_nonfinite"]) == (None, None)


def test_rows_have_what_arrives_of_an_update_and_what_is_not_finite_after_it_where_that_is_bounded() -> None:
    seen = [{"update_nonfinite": 3}, {"update_kept": 1.0}, {"update_kept": 0.99}, {"update_kept": 1.0}]
    trials = [structs.replace(one, **fields) for one, fields in zip(TRIALS, seen, strict=True)]
    search = found("norm", min_update_kept=0.98)
    rows = records(COLUMNS, points(search, SPACE, trials))
    assert [(row["update_kept"], row["update_nonfinite"]) for row in rows] == [
        (None, 3), (0.99, 0), (1.0, 0), (1.0, 0)
    ]  # fmt: skip
    (block,) = weighed(search, SPACE, trials)
    assert [row[3] for row in block.rows] == ["nan", "99.0%", "100%", "100%"]
    assert "in error, update, time and memory" in block.note

"""What the tables of a cast pass call ops and tensors."""

from typing import Any

from ampbench.instruments.casts import show
from ampbench.records.casts import By, Cast, CastPass, CastTrace, ModuleCalls, Operation
from ampbench.show.document import Block
from tests.stored_runs import make_case


def cast(index: int, what: str, name: str = "", **given: Any) -> Cast:
    fields = {"from_dtype": "fp32", "to_dtype": "bf16", "elements": 8, "bytes_read": 32, "bytes_written": 16}
    return Cast(index=index, what=what, name=name, tensor=index, **{**fields, **given})  # type: ignore[arg-type]


def passed(*casts: Cast, modules: int = 0) -> CastPass:
    """A pass in which `casts` ran in a row and an addmm read those that say so."""
    ops = [Operation(index=index, name="aten._to_copy") for index in range(len(casts))]
    ops.append(Operation(index=len(casts), name="aten.addmm", function="torch.nn.functional.linear"))
    calls = [
        ModuleCalls(module=f"{place}", kind="Linear", inputs=("fp32",), outputs=("bf16",), parameters=("fp32",))
        for place in range(modules)
    ]
    return CastPass(case_id="", how="device", trace=CastTrace(ops=ops, casts=list(casts), modules=calls))


def shown(block: Block, *headers: str) -> list[tuple[str, ...]]:
    places = [list(block.headers).index(header) for header in headers]
    return [tuple(row[place] for place in places) for row in block.rows]


def test_a_copy_that_no_op_reads_is_called_stored_in_both_tables_of_casts() -> None:
    found = passed(cast(0, "gradient", "weight"), cast(1, "weight", "bias", operation=2))
    (per_op,) = show.ops_that_cast(found)
    assert sorted(shown(per_op, "for op", "called as")) == [("addmm", "F.linear"), ("only stored", "–")]
    (each,) = show.every_cast(found)
    assert shown(each, "for op") == [("only stored",), ("addmm",)]


def test_different_tensors_without_a_name_are_counted_not_called_one() -> None:
    found = passed(cast(0, "activation"), cast(1, "activation"), cast(2, "gradient"), cast(3, "weight", "bias"))
    (table,) = show.tensors(found)
    assert set(shown(table, "what", "tensor")) == {
        ("activation", "2 without a name"), ("gradient", "1 without a name"), ("weight", "bias"),
    }  # fmt: skip


def test_what_is_cast_is_named_once_and_a_copy_is_said_to_be_put_in_the_cache() -> None:
    found = passed(cast(0, "input", "input"), cast(1, "weight", "fc.bias", cached=True), cast(2, "input", "mask"))
    (table,) = show.every_cast(found)
    assert shown(table, "what is cast") == [("input",), ("weight fc.bias (put in the cache)",), ("input mask",)]


def test_only_a_terminals_module_table_speaks_of_its_options() -> None:
    many = passed(cast(0, "input", "input"), modules=show.FEW_MODULES + 1)
    (table,) = show.modules(many)
    assert table.note.endswith("--all lists each")
    bare = show.module_table(many, collapsed=True)
    assert (bare.note, bare.rows, len(bare.rows)) == ("", table.rows, 1)
    section = show.section(make_case("bf16_autocast"), many, By.MODULE, everything=True)
    assert len(section.blocks[-1].rows) == show.FEW_MODULES + 1

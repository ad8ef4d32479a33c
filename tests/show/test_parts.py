"""Parts of a page: how many cases they list, and the first finding."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampbench.show.document import Block, Section, cut
from ampbench.show.page import DETAILED, LISTED, Held, Part, told_part


@dataclass(frozen=True)
class Named:
    name: str


def part_of(count: int, elsewhere: Sequence[str] = ()) -> Part:
    """Return a part of `count` cases."""
    found = [Named(f"case {number}") for number in range(count)]
    part = told_part(
        Held(elsewhere=elsewhere),
        found,
        lambda one: Section(one.name, [Block(f"{one.name} is fine."), Block("T", ["a"], [["1"]])]),
        id="a",
        title="A part",
        finding=lambda one: "" if one.name == "case 0" else "found",
    )
    assert part is not None
    return part


def test_of_many_cases_the_first_have_tables_more_have_a_line_and_the_rest_are_counted() -> None:
    part = part_of(LISTED + 5)
    assert [detail.name for detail in part.details] == [f"case {number}" for number in range(LISTED)]
    assert [bool(detail.blocks) for detail in part.details] == [True] * DETAILED + [False] * (LISTED - DETAILED)
    assert part.details[-1].said == f"case {LISTED - 1} is fine."
    assert part.left_out == 5


def test_the_finding_of_a_part_is_that_of_the_first_case_that_has_one() -> None:
    assert part_of(1).finding == ""
    assert part_of(3).finding == "case 1: found"


def test_a_table_that_is_cut_says_so_beside_its_note() -> None:
    block = Block("T", ["a"], [["1"], ["2"], ["3"]], note="all")
    assert cut(block, 3) is block
    assert (cut(block, 2).rows, cut(block, 2).note) == ([["1"], ["2"]], "all; 2 of 3")


def test_what_ran_elsewhere_is_said_in_a_sentence() -> None:
    assert part_of(1).said == []
    assert part_of(1, ["torch 2.9 on a", "torch 2.8 on b"]).said == [
        "Run with torch 2.9 on a; torch 2.8 on b, which measured nothing on this page."
    ]

"""Parts of a page: how much of many cases they list and tell, what comes first, and the sentences of a section."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampbench.show.document import Block, Section, cut
from ampbench.show.page import DETAILED, LISTED, Held, Part, sentences_of, told_part


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
        caption="All",
        verb="Traced",
        finding=lambda one: "" if one.name == "case 0" else "found",
    )
    assert part is not None
    return part


def test_a_table_of_all_cases_stands_where_there_are_several() -> None:
    assert part_of(1).overview is None
    two = part_of(2).overview
    assert two is not None
    assert [name for name, _ in two.rows] == ["case 0", "case 1"]


def test_the_first_of_many_cases_are_listed_fewer_are_told_of_one_by_one_and_the_first_is_open() -> None:
    part = part_of(LISTED + 5)
    assert part.overview is not None
    assert len(part.overview.rows) == LISTED
    assert [one.name for one in part.details] == [f"case {number}" for number in range(DETAILED)]
    assert [one.open for one in part.details] == [True] + [False] * (DETAILED - 1)
    assert (part.undetailed, part.left_out) == (LISTED - DETAILED, 5)
    assert len(part.sentences) == LISTED + 5  # who reads no table has all


def test_the_finding_of_a_part_is_that_of_the_first_case_that_has_one() -> None:
    assert part_of(1).finding == ""
    assert part_of(3).finding == "case 1: found"


def test_a_table_that_is_cut_says_so_beside_its_note() -> None:
    block = Block("T", ["a"], [["1"], ["2"], ["3"]], note="all")
    assert cut(block, 3) is block
    assert (cut(block, 2).rows, cut(block, 2).note) == ([["1"], ["2"]], "all; 2 of 3")


def test_the_sentences_of_a_section_are_its_lines_and_their_notes_without_tables() -> None:
    blocks = [Block("One.", note="Two."), Block("Three."), Block("T", ["a"], [["1"]], note="no")]
    assert sentences_of(Section("S", blocks)) == ["One.", "Two.", "Three."]


def test_what_ran_elsewhere_is_said_in_a_sentence() -> None:
    assert part_of(1).said == []
    assert part_of(1, ["torch 2.9 on a", "torch 2.8 on b"]).said == [
        "Traced with torch 2.9 on a; torch 2.8 on b, which measured nothing on this page."
    ]

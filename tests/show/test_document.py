"""Columns are described once: people read heading and unit, machines key and value. Phrases as sentences."""

import math
from typing import NamedTuple

import pytest

from ampbench.show.document import Block, Column, as_sentence, records, table


class Row(NamedTuple):
    name: str
    seconds: float | None
    note: str = ""


COLUMNS: tuple[Column[Row], ...] = (
    Column("name", lambda row: row.name, "what"),
    Column("seconds", lambda row: row.seconds, "step", "s"),
    Column("nanoseconds", lambda row: None if row.seconds is None else 1e9 * row.seconds),
    Column("", lambda row: row.note, "remark", rare=True),
)
ROWS = [Row("first", 0.0152), Row("second", None), Row("third", math.nan)]


def test_people_see_columns_with_a_heading_in_their_units_and_numbers_to_the_right() -> None:
    assert table("Times", COLUMNS, ROWS, "of a step") == Block(
        "Times",
        ["what", "step"],
        [["first", "15.2 ms"], ["second", "–"], ["third", "–"]],
        "of a step",
        numbers=["step"],
    )


def test_a_rare_column_is_there_where_one_row_has_something_in_it() -> None:
    found = table("Times", COLUMNS, [*ROWS, Row("last", 1.0, "noisy")])
    assert (found.headers[-1], [row[-1] for row in found.rows]) == ("remark", ["", "", "", "noisy"])


def test_machines_have_each_column_that_has_a_key() -> None:
    assert records(COLUMNS, ROWS[:2]) == [
        {"name": "first", "seconds": 0.0152, "nanoseconds": 15.2e6},
        {"name": "second", "seconds": None, "nanoseconds": None},
    ]


def test_a_long_table_says_how_much_of_it_is_shown() -> None:
    found = table("Times", COLUMNS, ROWS, "of a step", most=1)
    assert (len(found.rows), found.note) == (1, "of a step; 1 of 3, -v lists the rest")


@pytest.mark.parametrize(
    ("phrase", "sentence"),
    [
        ("no kernel for Half", "No kernel for Half."),
        ("fp16 needs loss scaling.", "fp16 needs loss scaling."),
        ("bf16_pure's loss ends higher", "bf16_pure's loss ends higher."),
        ("fp64 matmul: no kernel", "fp64 matmul: no kernel."),
        ("my_net learns", "my_net learns."),
        ("in fp32, the loss falls", "In fp32, the loss falls."),
        ("2 of 3 seeds", "2 of 3 seeds."),
        ("", "."),
    ],
)
def test_a_phrase_begins_with_a_capital_letter_unless_that_is_a_name(phrase: str, sentence: str) -> None:
    assert as_sentence(phrase) == sentence

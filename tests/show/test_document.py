"""Documents: columns described once, phrases as sentences, and blocks as a terminal and a Markdown page have them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from ampbench.show.document import (
    Block,
    Column,
    Document,
    Section,
    as_sentence,
    escaped,
    markdown,
    markdown_table,
    records,
    table,
)
from ampbench.show.terminal import document_lines, make_console, print_lines


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
    cells = [["first", "15.2 ms"], ["second", "–"], ["third", "–"]]
    times = Block("Times", ["what", "step"], cells, "of a step", numbers=["step"])
    assert table("Times", COLUMNS, ROWS, "of a step") == times


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


def test_a_line_of_a_table_stays_a_line_whatever_its_cells_hold() -> None:
    table = markdown_table(["a", "b", "c"], [["x|y", "1\n\r\n2", "z\\"]], left=["c"])
    assert table.splitlines() == ["| a | b | c |", "| :-- | --: | :-- |", "| x\\|y | 1 2 | z\\\\ |"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<script>alert(1)</script>", r"\<script>alert(1)\</script>"),
        ("<!-- hidden -->", r"\<!-- hidden -->"),
        ("&lt;b&gt; &#60;", r"\&lt;b\&gt; \&#60;"),
        ("`code` and ```", r"\`code\` and \`\`\`"),
        ("**bold** ~~out~~ $x$", r"\*\*bold\*\* \~\~out\~\~ \$x\$"),
        ("torch.nn.__init__", r"torch.nn.\_\_init\_\_"),
        ("[text](http://host) ![picture](x)", r"[text\](http://host) ![picture\](x)"),
        ("thanks @octocat", "thanks @&#8203;octocat"),
        ("abc\u202edcba \x1b[31m", r"abc\u202edcba \x1b[31m"),
        ("  two\n\n# lines\t", "two # lines"),
    ],
)
def test_text_that_would_be_markup_is_shown_as_it_is(text: str, shown: str) -> None:
    assert escaped(text) == shown


@pytest.fixture(autouse=True)
def _a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def print_sections(*sections: Section, missing: Sequence[str] = ()) -> None:
    console = make_console()
    document = Document(sections=lambda: sections, data=dict, columns=(), rows=list, missing=missing)
    print_lines(console, document_lines(document, console.width))


def printed(capsys: pytest.CaptureFixture[str], *blocks: Block) -> list[str]:
    print_sections(Section("Title", list(blocks)))
    return capsys.readouterr().out.splitlines()


def test_what_failed_is_one_line_each_in_a_pipe_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"net/{precision}/cpu/training: failed: RuntimeError: {'word ' * 30}end" for precision in ("fp16", "bf16")]
    print_sections(Section("Title"), missing=lines)
    assert capsys.readouterr().out.splitlines() == ["Title", "", *lines]
    print_sections(missing=lines)
    assert capsys.readouterr().out.splitlines() == lines


HEADERS = ["kept", "kind", "error", "step", "peak"]
NUMBERS = ("error", "step", "peak")
SETS = [["encoder.layers.0.attention and 12 more", "LayerNorm", "1.8e-02", "25.8 ms", "51.7 MiB"]]


@pytest.mark.parametrize(("columns", "shown"), [(100, NUMBERS), (54, NUMBERS), (40, ("error",)), (20, ("error",))])
def test_no_value_is_cut_where_a_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, shown: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = "\n".join(printed(capsys, Block("Sets", HEADERS, SETS, numbers=NUMBERS)))
    assert "LayerNorm" in text
    for header, value in zip(HEADERS[2:], SETS[0][2:], strict=True):
        assert (value in text) is (header in shown)
    hidden = [header for header in NUMBERS if header not in shown]
    said = f"no room for {', '.join(hidden)}: a wider terminal or --format markdown shows all"
    assert (said in " ".join(text.split())) is bool(hidden)


def test_a_title_alone_is_a_line_and_one_of_a_table_has_its_note_in_brackets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Block("Casts", ["what", "casts"], [["weight", "3"], ["input", "12"]], "the most telling", numbers=["casts"])
    assert printed(capsys, Block("Three casts."), table, Block("The end.")) == [
        "Title",
        "  Three casts.",
        "",
        "  Casts (the most telling)",
        "    what    casts",
        "    weight      3",
        "    input      12",
        "",
        "  The end.",
    ]


def test_a_long_text_of_a_precision_has_a_line_for_each_field(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["params=bf16,master=fp32,keep=*.head:fp32", "ok"]]
    table = Block("", ["precision", "verdict"], rows, whole=["precision"])
    assert [line.split() for line in printed(capsys, table)[-3:]] == [
        ["params=bf16,", "ok"], ["master=fp32,"], ["keep=*.head:fp32"]
    ]  # fmt: skip


def test_markdown_has_headings_for_tables_only_and_no_text_becomes_markup() -> None:
    table = Block("Casts", ["what", "casts"], [["a|b", "3"]], "the most telling", numbers=["casts"])
    section = Section("My_model `x`", [Block("All *fine*."), table])
    assert markdown([section], 3, missing=["one: failed: <b>"]) == (
        "### My_model \\`x\\`\n\nAll \\*fine\\*.\n\n#### Casts\n\nThe most telling.\n\n"
        "| what | casts |\n| :-- | --: |\n| a\\|b | 3 |\n\none: failed: \\<b>\n"
    )

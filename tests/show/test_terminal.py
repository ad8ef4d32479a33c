"""Sections of blocks as a terminal and a Markdown page have them."""

from collections.abc import Sequence

import pytest

from ampbench.show.document import Block, Document, Section, markdown
from ampbench.show.terminal import document_lines, make_console, print_lines


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
ROWS = [["encoder.layers.0.attention and 12 more", "LayerNorm", "1.8e-02", "25.8 ms", "51.7 MiB"]]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(100, NUMBERS), (54, NUMBERS), (40, ("error",)), (20, ("error",))],
)
def test_no_value_is_cut_where_a_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, shown: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = "\n".join(printed(capsys, Block("Sets", HEADERS, ROWS, numbers=NUMBERS)))
    assert "LayerNorm" in text
    for header, value in zip(HEADERS[2:], ROWS[0][2:], strict=True):
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

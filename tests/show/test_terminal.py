"""Sections of blocks as a terminal and a Markdown page have them."""

from collections.abc import Sequence

import pytest

from ampbench.show.document import Block, Document, Section, markdown
from ampbench.show.terminal import _broken, _shared, document_lines, make_console, padded, print_lines

LONG = "torch_ops.my_library.fused_attention_with_rotary_embedding.default"


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


def test_columns_that_fold_share_the_room_that_is_there() -> None:
    assert _shared({0: 5, 2: 80}, 60) == {0: 5, 2: 55}
    assert _shared({0: 50, 2: 80}, 60) == {0: 30, 2: 30}
    assert _shared({0: 50, 2: 8}, 12) == {0: 10, 2: 8}


def test_a_name_that_is_too_long_breaks_at_its_dots() -> None:
    assert _broken(LONG, 44).split("\n") == [
        "torch_ops.my_library.", "fused_attention_with_rotary_embedding.", "default",
    ]  # fmt: skip
    assert _broken("1.97 KiB of a.b", 10) == "1.97 KiB of a.b"


def test_a_name_with_parts_that_are_too_long_fills_its_lines() -> None:
    assert _broken("part_of_forty.part_of_forty.0", 12).split("\n") == ["part_of_fort", "y.part_of_fo", "rty.0"]


def test_one_long_op_leaves_the_other_columns_their_room(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["0", LONG, "fp32 → bf16", "encoder.layers.0.attention"], ["1", "addmm", "fp32 → bf16", "head"]]
    lines = printed(capsys, Block("Every op", ["#", "op", "dtypes", "module"], rows, numbers=["#"]))
    assert max(map(len, lines)) <= 100
    assert any(line.endswith("fp32 → bf16  encoder.layers.0.attention") for line in lines)
    assert any(line.strip().startswith("fused_attention_with_rotary_embedding.") for line in lines)


def test_a_column_that_is_whole_is_never_folded(capsys: pytest.CaptureFixture[str]) -> None:
    name = "timm:vit_small_patch16_224_of_a_very_long_name"
    rows = [[name, "word " * 20]]
    lines = printed(capsys, Block("Every network", ["network", "why"], rows, whole=["network"]))
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if name in line] == [f"    {name}  {' '.join(['word'] * 9)}"]


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
    [(100, NUMBERS), (54, NUMBERS), (49, NUMBERS), (40, ("error", "step")), (32, ("error",)), (20, ("error",))],
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


def test_where_there_is_room_nothing_is_said_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no room" not in "".join(printed(capsys, Block("Sets", HEADERS, ROWS, numbers=NUMBERS)))


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


def test_markdown_has_headings_for_tables_only_and_no_text_becomes_markup() -> None:
    table = Block("Casts", ["what", "casts"], [["a|b", "3"]], "the most telling", numbers=["casts"])
    section = Section("My_model `x`", [Block("All *fine*."), table])
    assert markdown([section], 3, missing=["one: failed: <b>"]) == (
        "### My_model \\`x\\`\n\nAll \\*fine\\*.\n\n#### Casts\n\nThe most telling.\n\n"
        "| what | casts |\n| :-- | --: |\n| a\\|b | 3 |\n\none: failed: \\<b>\n"
    )


def test_cells_fill_their_columns_as_wide_as_a_terminal_shows_them() -> None:
    assert padded([["a", "b", "change"], ["名前", "c", "+1%"]], left=1) == [
        ["a   ", "b", "change"],
        ["名前", "c", "   +1%"],
    ]
    assert padded([["1", "22"], ["333", "4"]], left=0) == [["  1", "22"], ["333", " 4"]]

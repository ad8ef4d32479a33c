"""Text as Markdown."""

import pytest

from ampbench.show.document import LONGEST, escaped, markdown_table


def test_a_line_of_a_table_stays_a_line_whatever_its_cells_hold() -> None:
    table = markdown_table(["a", "b", "c"], [["x|y", "1\n\r\n2", "z\\"]], left=["c"])
    assert table.splitlines() == ["| a | b | c |", "| :-- | --: | :-- |", "| x\\|y | 1 2 | z\\\\ |"]


def test_headers_that_come_from_a_file_stay_text_as_cells_do() -> None:
    table = markdown_table(["a|b", "\x1b[31m\0", "<script>"], [["1", "2", "3"]], left=["<script>"])
    assert table.splitlines()[:2] == [r"| a\|b | \x1b[31m\x00 | \<script> |", "| :-- | --: | :-- |"]


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


@pytest.mark.parametrize(
    "text", ["mlp[depth=3,width=512]/b32/fp16_autocast", "-7.2%", "<0.01%", ">99.9%", "a@b.org", "5.4e-03 · ±0.3%"]
)
def test_names_and_numbers_stay_readable_as_text(text: str) -> None:
    assert escaped(text) == text


def test_megabytes_are_cut_and_counted() -> None:
    said = escaped("x" * 1_000_000)
    assert said == f"{'x' * LONGEST}… (1,000,000 characters)"

"""Text as Markdown."""

import pytest

from ampbench.show.document import escaped, markdown_table


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

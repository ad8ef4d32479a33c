"""Plain English: no line that a user reads has a phrase that `BANNED` lists, or a sentence of more than 25 words."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ampbench
from ampbench.show import comparison, studies, wording

PACKAGE = Path(ampbench.__file__).parent
BANNED = re.compile(
    r"\b(?:is|are|was|be) (?:said|told)\b|\btells? of\b|\bbeside\b|\bso many\b|\b(?:lies|lie)\b|\bof which\b"
    r"|\bwhat there is\b|\bthe ones?\b|\bcannot be meant\b|\bfinds no room\b|\bthose (?:of|that|which|with|in)\b"
    r"|\bthat of\b|\bin which\b|\bunder way\b|\bgoes without\b|\bfor real\b|\bwhat (?:is|are|was)\b"
    r"|\bthat is no\b|\bcomes? to no\b|\bof what\b|\bby what\b|\bany one\b"
)
"""Phrases that make a sentence read as translated; each has a plainer word."""
LONGEST = 25
"""The most words of a sentence."""
SENTENCE = re.compile(r"[.:;?]\s|\n\n|\n  .*|\s{2,}|\(")
"""What ends a sentence: full stops and colons, examples, and each choice of a template."""
_FACT = re.compile(r"\{[^{}|]*((?:\|[^{}]*)?)\}")


def spelled(template: str) -> str:
    """Return a template with a word for each fact and the words around it."""
    return _FACT.sub(lambda fact: f" {fact[1].replace('||', ' X ').replace('|', ' ')} " if fact[1] else "X", template)


def templates() -> Iterator[tuple[str, str]]:
    """Yield every template of a statement, with its code."""
    tables = [wording.TEMPLATES, wording.OF_GATES, wording.CAUSES, wording.BRIEFLY]
    tables += [comparison.CHANGES, comparison.REMARKS, comparison.CONTROLS, comparison.CAVEATS]
    for table in (*tables, studies.TEMPLATES):
        yield from ((str(code), spelled(text)) for code, text in table.items())


def text_of(node: ast.expr) -> str:
    """Return the text of a literal, its values as X; "" of another expression."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "X" for part in node.values)
    return ""


def literals() -> Iterator[tuple[str, str]]:
    """Yield what errors and `help=` say, and the help of verbs, with their places."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found: list[str] = []
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                found = [text_of(argument) for argument in node.exc.args]
            elif isinstance(node, ast.keyword) and node.arg == "help":
                found = [text_of(node.value)]
            elif isinstance(node, ast.FunctionDef) and "Examples:" in (ast.get_docstring(node) or ""):
                found = [(ast.get_docstring(node) or "").partition("Examples:")[0]]
            yield from ((f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}", text) for text in found if text)


@pytest.mark.parametrize("texts", [templates, literals])
def test_no_line_has_a_banned_phrase_or_a_long_sentence(texts: "type[Iterator[tuple[str, str]]]") -> None:
    every = dict(texts())
    assert len(every) > 100
    assert {place: BANNED.findall(text) for place, text in every.items() if BANNED.search(text)} == {}
    long = [(place, one) for place, text in every.items() for one in SENTENCE.split(text) if len(one.split()) > LONGEST]
    assert long == []


def test_a_banned_phrase_is_found() -> None:
    assert BANNED.findall("what is here lies beside the one") == ["what is", "lies", "beside", "the one"]

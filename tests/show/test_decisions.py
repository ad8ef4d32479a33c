"""No code decides by a sentence: none that is told is matched, split or searched."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ampbench

ROOT = Path(ampbench.__file__).parent
PARTS = ("ab", "cli", "convert", "judge", "pytest_plugin", "records", "report", "store", "trend")
SENTENCES = frozenset(
    [
        "brief",
        "caveat",
        "note",
        "notes",
        "reason",
        "reasons",
        "remark",
        "remarks",
        "said",
        "sentence",
        "sentences",
        "why",
    ]
)
"""What sentences are called."""
FOREIGN = {"arms.py: 'not a git repository' in said"}
"""Decisions by what others say: git."""
MATCHES = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "find", "index"}


def name_of(node: ast.expr) -> str:
    """Return what an expression is called: a variable, an attribute, a column of a row."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_sentence(node: ast.expr) -> bool:
    return name_of(node) in SENTENCES or (isinstance(node, ast.Attribute) and node.attr == "text")


def is_words(node: ast.expr) -> bool:
    """Return whether an expression is a text that is written down, a constant or several of these."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(is_words, node.elts))
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(node.value)
    return name_of(node).isupper()


def decisions(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of, method = node.func.value, node.func.attr
            splits = method in MATCHES or (method in ("split", "rsplit") and node.args)  # without: for its white space
            searched = method in ("search", "match", "fullmatch") and any(map(is_sentence, node.args))
            if (splits and is_sentence(of)) or searched:
                yield ast.unparse(node)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            sides = node.left, node.comparators[0]
            if any(is_sentence(one) and is_words(other) for one, other in (sides, sides[::-1])):
                yield ast.unparse(node)


@pytest.mark.parametrize("part", PARTS)
def test_no_code_decides_by_a_sentence(part: str) -> None:
    files = [path for path in (ROOT / part).rglob("*.py") if "programs" not in path.parts]
    assert files
    found = {f"{path.name}: {one}" for path in files for one in decisions(path.read_text(encoding="utf-8"))}
    assert found - FOREIGN == set()


def test_decisions_by_a_sentence_are_seen() -> None:
    told = """
if one.reason.startswith("failed") or row["reason"] in (NOT_MEASURED, OUT_OF_TIME) or LOSS_NOT_FINITE in found.notes:
    word = why.partition(":")[0]
if note != NOT_IN_TURNS and KNOWN.search(said) and "busy" in one.text:
    fine = " ".join(why.split()) or one.status in (REGRESSED, IMPROVED) or name.startswith("fp16") or reason == other
"""
    assert len(list(decisions(told))) == 7

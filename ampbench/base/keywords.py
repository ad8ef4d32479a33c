"""Expressions that choose cases: the -k of every verb."""

import ast
import functools
import re
from collections.abc import Callable

from ampbench.errors import UsageError

_DEEPEST = 50
"""So many parentheses and nots may stand in each other; far more than anyone reads, far fewer than a parser's stack."""
_SHOWN = 100
"""As many characters of an expression are shown where it is none."""

_Test = Callable[[str], bool]


def matches(expression: str, case_id: str) -> bool:
    """Return whether `case_id` satisfies `expression`: parts of ids joined by and, or, not and parentheses.

    An empty expression matches everything; matching ignores case. Raises `UsageError` for a malformed expression.
    """
    return _test(expression)(case_id.lower())


@functools.lru_cache(maxsize=1 << 16)
def _test(expression: str) -> _Test:
    """Return what tells whether an id in lower case satisfies `expression`, which is parsed once, however many ids."""
    if not expression.strip():
        return lambda _: True
    words: list[str] = []
    deep = deepest = nots = 0
    parts: list[str] = []
    for part in re.findall(r"[()]|[^\s()]+", expression):
        nots = nots + 1 if part == "not" else nots if part == "(" else 0
        deep += {"(": 1, ")": -1}.get(part, 0)
        deepest = max(deepest, deep + nots)
        if part in ("and", "or", "not", "(", ")"):
            parts.append(part)
        else:
            parts.append(f"w{len(words)}")  # what stands for it to the parser
            words.append(part.lower())
    if deepest > _DEEPEST:
        raise UsageError(f"-k {_short(expression)} nests parentheses or nots more than {_DEEPEST} deep")
    try:
        return _made(ast.parse(" ".join(parts), mode="eval").body, words)
    except SyntaxError:
        raise UsageError(
            f"-k {_short(expression)} is not an expression of names joined by and, or, not, ( and )"
        ) from None


def _made(node: ast.expr, words: list[str]) -> _Test:
    match node:
        case ast.BoolOp(op=op, values=values):
            tests = [_made(value, words) for value in values]
            holds = all if isinstance(op, ast.And) else any
            return lambda case_id: holds(test(case_id) for test in tests)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            denied = _made(operand, words)
            return lambda case_id: not denied(case_id)
        case ast.Name(id=name):
            word = words[int(name[1:])]
            return lambda case_id: word in case_id
    raise SyntaxError


def _short(expression: str) -> str:
    return repr(expression if len(expression) <= _SHOWN else f"{expression[:_SHOWN]}…")

"""Expressions that choose cases: the -k of every verb."""

import ast
import functools
import re
from collections.abc import Callable

from ampbench.errors import UsageError

_SHOWN = 100
"""As many characters of an expression are shown where it is none."""

_Test = Callable[[str], bool]


def matches(expression: str, case_id: str) -> bool:
    """Return whether `case_id` satisfies `expression`: parts of ids joined by and, or, not and parentheses.

    An empty expression matches everything; matching ignores case. Raises `UsageError` for a malformed expression.
    """
    try:
        return _test(expression)(case_id.lower())
    except (SyntaxError, RecursionError, MemoryError):  # the last two: nested without end
        shown = repr(expression if len(expression) <= _SHOWN else f"{expression[:_SHOWN]}…")
        raise UsageError(f"-k {shown} is not an expression of names joined by and, or, not, ( and )") from None


@functools.lru_cache(maxsize=1 << 16)
def _test(expression: str) -> _Test:
    """Return what tells whether an id in lower case satisfies `expression`, which is parsed once, however many ids."""
    if not expression.strip():
        return lambda _: True
    words: list[str] = []
    parts: list[str] = []
    for part in re.findall(r"[()]|[^\s()]+", expression):
        if part in ("and", "or", "not", "(", ")"):
            parts.append(part)
        else:
            parts.append(f"w{len(words)}")  # what stands for it to the parser
            words.append(part.lower())
    return _made(ast.parse(" ".join(parts), mode="eval").body, words)


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

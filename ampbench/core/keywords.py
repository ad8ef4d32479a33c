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
    """Return the test of an id in lower case; an expression is parsed once, however many ids."""
    if not expression.strip():
        return lambda _: True
    words: list[str] = []
    parts: list[str] = []
    for part in re.findall(r"[()]|[^\s()]+", expression):
        if part in ("and", "or", "not", "(", ")"):
            parts.append(part)
        else:
            parts.append(f"w[{len(words)}]")  # what stands for it to Python
            words.append(part.lower())
    tree = ast.parse(" ".join(parts), mode="eval")
    if any(isinstance(node, ast.Call | ast.Tuple) for node in ast.walk(tree)):  # as in "a (b)" and "()"
        raise SyntaxError
    code = compile(tree, "-k", "eval")
    return lambda case_id: bool(eval(code, {"w": [word in case_id for word in words]}))

"""Expressions that choose cases: the -k of every verb."""

import ast
import re

from ampbench.errors import UsageError


def matches(expression: str, case_id: str) -> bool:
    """Return whether `case_id` satisfies `expression`: parts of ids joined by and, or, not and parentheses.

    An empty expression matches everything; matching ignores case. Raises `UsageError` for a malformed expression.
    """
    if not expression.strip():
        return True
    words: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[0] in ("and", "or", "not", "(", ")"):
            return f" {match[0]} "
        words.append(match[0])
        return f" w{len(words) - 1} "

    rewritten = re.sub(r"[()]|[^\s()]+", number, expression)
    try:
        tree = ast.parse(rewritten.strip(), mode="eval").body
    except SyntaxError:
        raise UsageError(f"-k {expression!r} is not an expression of names joined by and, or, not, ( and )") from None

    def holds(node: ast.expr) -> bool:
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                return all(holds(value) for value in values)
            case ast.BoolOp(values=values):
                return any(holds(value) for value in values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not holds(operand)
            case ast.Name(id=name):
                return words[int(name[1:])].lower() in case_id.lower()
        raise UsageError(f"-k {expression!r} is not an expression of names joined by and, or, not, ( and )")

    return holds(tree)

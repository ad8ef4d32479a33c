"""Known defects of mixed precision: one function each, which shows the defect; a decorator makes it a check.

The function of a check is never called: its text is the program, to paste or to run, and needs only torch. So checks
are known without torch.
"""

import ast
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ampbench.records.case import DEVICES

CACHE, RULES, COMPILE, SCALER, KERNELS, SPEED = AREAS = "cache", "rules", "compile", "scaler", "kernels", "speed"
"""What a check is about: autocast's cache of casts; which op runs in which dtype; torch.compile and export; GradScaler
and optimizers; kernels of half precision; what it costs. Each is a module of this package."""
TRAINING, INFERENCE = "training", "inference"
"""The phases that a defect affects."""
CPU_ALONE, ACCELERATORS = ("cpu",), DEVICES[1:]
"""Devices of checks."""

Answer = tuple[str, str] | tuple[str, str, bool]
"""Expected and seen: short texts about the same thing, equal without the defect; optionally, whether all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check: `title` is the defect in a sentence, `threads` are its reports, as "owner/repo#number".

    `why` says why what its program expects is right. Where it sees something else, that is a defect or, with
    `by_design`, differs from what one may expect. `matters` says for what, `remedy` what to do about it, `mended` since
    which torch it is ("": it is not, or nobody knows).

    It is for `devices`; `fake`, for those of them that are not here, by fake tensors: only where these are known to
    answer truly. `compiler` says that it needs a C++ compiler, `slow` that it takes more than two seconds, `timed` that
    it goes by times, so that other work on the machine may change its outcome. An error of the type `raises` that ends
    the program is what it sees; any other shows nothing.

    A case that fails with a message in which `error`, a regular expression, is found, or of whose trace an op of `ops`
    ("layer_norm") has a tensor of `dtype` ("": any), is pointed to it.
    """

    name: str
    area: str
    title: str
    why: str
    remedy: str
    threads: tuple[str, ...]
    mended: str = ""
    matters: tuple[str, ...] = (TRAINING, INFERENCE)
    by_design: bool = False
    devices: tuple[str, ...] = DEVICES
    fake: bool = False
    compiler: bool = False
    slow: bool = False
    timed: bool = False
    raises: type[Exception] | None = None
    error: str = ""
    ops: tuple[str, ...] = ()
    dtype: str = ""


def defect(*threads: str, **facts: Any) -> Callable[[Callable[[str], Answer]], Check]:
    """Make a check of a function of a device type; `facts` are fields of `Check`.

    The function's docstring has the title, then remarks on the program if any, then "Why: " and "Remedy: ". A thread
    without a repository ("#112583") is one of PyTorch's.
    """

    def check_of(function: Callable[[str], Answer]) -> Check:
        title, _, text = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        why, _, remedy = text.partition("Why: ")[2].partition("\nRemedy: ")
        title, why, remedy = (" ".join(part.split()).removesuffix(".") for part in (title, why, remedy))
        return Check(
            name=function.__name__.replace("_", "-"),
            area=function.__module__.rpartition(".")[2],
            title=title,
            why=why,
            remedy=remedy,
            threads=tuple(f"pytorch/pytorch{thread}" if thread.startswith("#") else thread for thread in threads),
            **facts,
        )

    return check_of


from ampbench.defects import cache, compile, kernels, rules, scaler, speed  # noqa: E402 - they need the decorator

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        check.name: check
        for area in (cache, rules, compile, scaler, kernels, speed)
        for check in vars(area).values()
        if isinstance(check, Check)
    }
)
"""Every check by its name, in the order in which they are shown."""


def program_of(check: Check, device: str = "cpu") -> str:
    """Return the program of a check for a device, as it can be pasted."""
    area = _module(f"{__package__}.{check.area}")
    function = area.functions[check.name.replace("-", "_")]
    needed = dict.fromkeys(_needed(function.body, area))
    imports = [
        [line for line in needed if line.startswith(_IMPORT) and ("torch" in line) == of] for of in (False, True)
    ]
    helpers = [text for text in needed if not text.startswith(_IMPORT)]
    described, *_, answer = function.body
    body = "\n".join(area.lines[described.end_lineno : answer.lineno - 1]).strip("\n").splitlines()
    body += _answered(answer, area)
    if check.raises is None:
        body = _dedented(body)
    else:
        body = ["try:", *body, f"except {check.raises.__name__} as error:"]
        body += ['    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"']
    parts = [
        "\n".join(_dedented(area.lines_of(described))),
        *("\n".join(lines) for lines in imports if lines),
        f'device = "{device}"',
        *(f"\n{helper}\n" for helper in helpers),
        "\n".join([*body, 'print("expected:", expected)', 'print("seen:    ", seen)']),
    ]
    return "\n\n".join(parts) + "\n"


_IMPORT = ("import ", "from ")


@dataclass(frozen=True, slots=True)
class _Module:
    """The text of a module of checks: its lines, its functions, and its imports by the name that each binds."""

    lines: list[str]
    functions: dict[str, ast.FunctionDef]
    imports: dict[str, ast.Import | ast.ImportFrom]

    def lines_of(self, node: ast.stmt) -> list[str]:
        """Return the lines of a statement."""
        return self.lines[node.lineno - 1 : node.end_lineno]


@functools.cache
def _module(name: str) -> _Module:
    text = inspect.getsource(importlib.import_module(name))
    functions: dict[str, ast.FunctionDef] = {}
    imports: dict[str, ast.Import | ast.ImportFrom] = {}
    statements = list(ast.parse(text).body)
    for node in statements:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        elif isinstance(node, ast.If):  # TYPE_CHECKING: torch
            statements += node.body
        elif isinstance(node, ast.Import):
            imports |= {(name.asname or name.name): ast.Import([name]) for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports |= {name.name: ast.ImportFrom(node.module, [name], 0) for name in node.names}
    return _Module(text.splitlines(), functions, imports)


def _needed(parts: Iterable[ast.AST], module: _Module) -> Iterator[str]:
    """Yield the imports and functions that parts of a module need, in source order."""
    nodes = [node for part in parts for node in ast.walk(part)]
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
    for name, node in module.imports.items():
        if name in used and isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{__package__}."):
            yield from _helper(name, _module(str(node.module)))
        elif name in used:
            yield ast.unparse(node)
    for name in module.functions:
        if name in used:
            yield from _helper(name, module)


def _helper(name: str, module: _Module) -> Iterator[str]:
    function = module.functions[name]
    yield from _needed([function], module)
    yield "\n".join(module.lines_of(function))


def _answered(answer: ast.stmt, module: _Module) -> list[str]:
    """Return the lines that give a program's variables what its function returns."""
    names = ("expected", "seen", "good")
    text = "\n".join(_dedented(module.lines_of(answer)))
    (answer,) = ast.parse(text).body
    assert isinstance(answer, ast.Return)
    if not isinstance(answer.value, ast.Tuple):
        return [f"    {', '.join(names)} = {text.removeprefix('return ')}"]
    written = []
    for name, value in zip(names, answer.value.elts, strict=False):
        value_text = ast.get_source_segment(text, value)
        written += [f"    {name} = {value_text}"] if value_text != name else []
    return written


def _dedented(lines: list[str]) -> list[str]:
    return [line.removeprefix("    ") for line in lines]

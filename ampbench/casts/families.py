"""Families of ops by their names, whatever a graph calls them, and which dtypes each gives. Pure functions, no torch.

Names are those of eager mode ("aten.addmm"), TorchScript ("aten::linear"), inductor ("prims.convert_element_type") and
autograd ("UnsafeViewBackward0").
"""

import re
from collections.abc import Iterable

from ampbench.records.casts import Operation

FLOATING = ("fp16", "bf16", "fp32", "fp64")
"""The dtypes that autocast and mixed precision are about."""

VIEWS = frozenset({"t", "view", "permute", "transpose", "expand", "slice", "select", "squeeze", "unsqueeze", "detach"})
VIEWS |= {"alias", "reshape", "flatten", "unsafe_view", "reshape_alias", "split", "split_with_sizes", "chunk", "unbind"}
VIEWS |= {"as_strided", "view_as", "expand_as", "lift_fresh"}
"""Ops that only say where to read."""

CASTS = frozenset({"to", "to_copy", "convert_element_type", "type_as", "autocast_to_reduced_precision"})
CASTS |= {"autocast_to_full_precision"}
"""Ops that copy into another dtype or, where the dtype is right already, do nothing."""

_MOVES = frozenset({"copy", "clone"})

_FAMILIES = {
    "matmul": ("addmm", "mm", "bmm", "baddbmm", "linear", "matmul", "addbmm", "mv", "addmv"),
    "convolution": ("convolution", "mkldnn_convolution", "cudnn_convolution", "conv1d", "conv2d", "conv3d"),
    "batch_norm": ("batch_norm", "batch_norm_legit", "batch_norm_legit_functional", "batch_norm_legit_no_training"),
    "dropout": ("dropout", "native_dropout", "bernoulli"),
}
"""Names that graphs have for one op; others differ by no more than "native_", a leading or a trailing "_"."""

_PRODUCTS = ("matmul", "convolution", "convolution_backward")
_FAMILY = {name: family for family, names in _FAMILIES.items() for name in names}
_NODE = re.compile(r"(\w+?)Backward\d*$")


def plain_name(name: str) -> str:
    """Return an op's name without its namespace and what tells its variants apart: "unsafe_view" of all the above."""
    node = _NODE.fullmatch(name)
    if node is not None:
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node[1]).lower()
    return name.rpartition("::")[2].rpartition(".")[2].strip("_").removeprefix("native_")


def is_view(name: str) -> bool:
    """Return whether an op of any graph only says where to read."""
    return plain_name(name) in VIEWS


def op_results(ops: Iterable[Operation]) -> dict[tuple[str, str], dict[str, list[str]]]:
    """Return the floating dtypes of ops' results, by phase and module and by kind of op, in the order of running.

    Of the backward pass only products: what else there is differs from graph to graph.
    """
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for operation in ops:
        name = plain_name(operation.name)
        family = _FAMILY.get(name, name)
        floating = [dtype for dtype in operation.outputs if dtype in FLOATING]
        if operation.recomputed or not floating or name in VIEWS | CASTS | _MOVES:
            continue
        if not any(dtype in FLOATING for dtype in operation.inputs):
            continue  # made from nothing: zeros to start from, random masks
        if operation.phase == "forward" or (operation.phase == "backward" and family in _PRODUCTS):
            families = found.setdefault((operation.phase, operation.module), {})
            families[family] = [*families.pop(family, []), floating[0]]  # the last to run comes last
    return found

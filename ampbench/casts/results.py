"""Which dtypes ops give, by module and by kind of op, whatever a graph calls them. Pure functions, without torch."""

from collections.abc import Iterable

from ampbench.records.casts import Operation

_FLOATING = frozenset({"fp16", "bf16", "fp32", "fp64"})

_VIEWS = frozenset({"t", "view", "permute", "transpose", "expand", "slice", "select", "squeeze", "unsqueeze", "detach"})
_VIEWS |= {"alias", "reshape", "flatten", "unsafe_view", "split", "split_with_sizes", "chunk", "unbind", "clone"}
_CASTS = frozenset({"to", "to_copy", "convert_element_type", "type_as", "copy"})
_CASTS |= {"autocast_to_reduced_precision", "autocast_to_full_precision"}

_FAMILIES = {
    "matmul": ("addmm", "mm", "bmm", "baddbmm", "linear", "matmul", "addbmm", "mv", "addmv"),
    "convolution": ("convolution", "mkldnn_convolution", "cudnn_convolution", "conv1d", "conv2d", "conv3d"),
    "batch_norm": ("batch_norm", "batch_norm_legit", "batch_norm_legit_functional", "batch_norm_legit_no_training"),
    "dropout": ("dropout", "native_dropout", "bernoulli"),
}
"""Names that graphs have for one op; others differ by no more than "native_", a leading or a trailing "_"."""

_PRODUCTS = ("matmul", "convolution", "convolution_backward")
_FAMILY = {name: family for family, names in _FAMILIES.items() for name in names}


def op_results(ops: Iterable[Operation]) -> dict[tuple[str, str], dict[str, list[str]]]:
    """Return the floating dtypes of ops' results, by phase and module and by kind of op, in the order of running.

    Of the backward pass only products: what else there is differs from graph to graph.
    """
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for operation in ops:
        name = _plain(operation.name)
        family = _FAMILY.get(name, name)
        floating = [dtype for dtype in operation.outputs if dtype in _FLOATING]
        if operation.recomputed or not floating or name in _VIEWS | _CASTS:
            continue
        if not any(dtype in _FLOATING for dtype in operation.inputs):
            continue  # made from nothing: zeros to start from, random masks
        if operation.phase == "forward" or (operation.phase == "backward" and family in _PRODUCTS):
            families = found.setdefault((operation.phase, operation.module), {})
            families[family] = [*families.pop(family, []), floating[0]]  # the last to run comes last
    return found


def _plain(name: str) -> str:
    """Return an op's name without its namespace and what tells its variants apart."""
    return name.rpartition("::")[2].rpartition(".")[2].strip("_").removeprefix("native_")

"""The code that keeps the modules that a search found, to be pasted into a program of `model` and `inputs`."""

from glob import escape

from ampbench.keeping.islands import WHOLE
from ampbench.precisions import PRECISIONS, Precision
from ampbench.records.cases import Case
from ampbench.records.keeping import KeepSearch

CALLED = "output = model(inputs)  # or model(*inputs), model(**inputs)"
WIDTH = 88
"""Longer calls have a line for each name, as formatters write them."""


def code(search: KeepSearch, case: Case) -> str:
    """Return Python that keeps what was found and runs `model` on `inputs`, whatever these are, as the trial of it did.

    Empty where nothing was found, nothing need be kept, or all of it: a network in fp32 needs no code. `model` is in
    fp32, on the device; in a pure precision its modules are kept before it is moved, so that their weights lose
    nothing. Names that `keep_fp32` would take for patterns are escaped.
    """
    if not search.found or search.found == WHOLE:
        return ""
    row = PRECISIONS[case.precision]
    pure, trains = row.autocast is None, case.phase == "training"
    lines = [
        "import torch",
        *(["from torch.utils._pytree import tree_map_only"] if pure else []),
        "",
        "import ampbench",
        "",
        *([] if trains else ["model.eval()"]),
        *_call(search.found, cast_back=pure),
    ]
    if case.memory_format == "channels_last":
        lines.append("model = model.to(memory_format=torch.channels_last)  # inputs, too")
    region = _pure(row.storage, training=trains) if pure else _autocast(row, case.device, training=trains)
    return "\n".join([*lines, *region, *_after(case, scaler=trains and row.scaler and case.scaler)]) + "\n"


def _call(found: list[str], *, cast_back: bool) -> list[str]:
    """Return the call of `keep_fp32`, on as many lines as it needs."""
    arguments = ["model", *(_quoted(escape(name)) for name in found), *(["cast_back=True"] if cast_back else [])]
    line = f"ampbench.keep_fp32({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return [line]
    return ["ampbench.keep_fp32(", *(f"    {one}," for one in arguments), ")"]


def _quoted(text: str) -> str:
    return f'"{text}"' if text.isprintable() and not set(text) & {'"', "\\"} else repr(text)


def _autocast(row: Precision, device: str, *, training: bool) -> list[str]:
    """Return what enters autocast as `explain.devices.autocast_of` does."""
    inside = ["    # and the loss, in here"] if training else []
    return [f'with torch.autocast("{device}", dtype=torch.{row.autocast}):', f"    {CALLED}", *inside]


def _pure(storage: str, *, training: bool) -> list[str]:
    moved = {"float16": "half", "bfloat16": "bfloat16"}[storage]
    return [
        f"model = model.to(torch.{storage})  # after keep_fp32: what is kept stays fp32",
        f"inputs = tree_map_only({'  # targets, too' if training else ''}",
        f"    torch.Tensor, lambda x: x.{moved}() if x.is_floating_point() else x, inputs",
        ")",
        CALLED,
    ]


def _after(case: Case, *, scaler: bool) -> list[str]:
    """Return comments on what follows in training."""
    if not scaler:
        return []
    return [
        f'# scaler = torch.amp.GradScaler("{case.device}")',
        "# scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
    ]

"""The code that keeps the modules that a search found, to be pasted into a program of `model` and `inputs`."""

from glob import escape

from ampbench.keeping.weighing import WHOLE
from ampbench.precisions import PRECISIONS
from ampbench.records.cases import Case
from ampbench.records.keeping import KeepSearch

WIDTH = 88
"""Longer calls have a line for each name, as formatters write them."""


def code(search: KeepSearch, case: Case) -> str:
    """Return Python that keeps what was found and runs `model` on `inputs` as the trial of it did.

    Empty where nothing was found, or nothing need be kept. `model` is in fp32, on the device; in a pure precision its
    modules are kept before it is moved, so that their weights lose nothing. Names that `keep_fp32` would take for
    patterns are escaped.
    """
    if not search.found:
        return ""
    row = PRECISIONS[case.precision]
    pure = row.autocast is None
    lines = [
        "import torch",
        "",
        "import ampbench",
        "",
        *_call(search.found, cast_back=pure and (_trains(case) or search.found != WHOLE)),
    ]
    if case.memory_format == "channels_last":
        lines.append("model = model.to(memory_format=torch.channels_last)  # inputs, too")
    region = _pure(row.storage) if pure else _autocast(case.device, f"torch.{row.autocast}", training=_trains(case))
    return "\n".join([*lines, *region, *_after(case, scaler=row.scaler and case.scaler)]) + "\n"


def _call(found: list[str], *, cast_back: bool) -> list[str]:
    """Return the call of `keep_fp32`, on as many lines as it needs."""
    names = [] if found == WHOLE else [_quoted(escape(name)) for name in found]
    arguments = ["model", *names, *(["cast_back=True"] if cast_back else [])]
    line = f"ampbench.keep_fp32({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return [line]
    return ["ampbench.keep_fp32(", *(f"    {one}," for one in arguments), ")"]


def _quoted(text: str) -> str:
    return f'"{text}"' if text.isprintable() and not set(text) & {'"', "\\"} else repr(text)


def _autocast(device: str, dtype: str, *, training: bool) -> list[str]:
    inside = ["    # and the loss, in here"] if training else []
    return [f'with torch.autocast("{device}", dtype={dtype}):', "    output = model(inputs)", *inside]


def _pure(storage: str) -> list[str]:
    return [
        f"model = model.to(torch.{storage})  # after keep_fp32: what is kept stays fp32",
        f"output = model(inputs.to(torch.{storage}))",
    ]


def _after(case: Case, *, scaler: bool) -> list[str]:
    """Return comments on what follows in training."""
    if not _trains(case) or not scaler:
        return []
    return [
        f'# with scaler = torch.amp.GradScaler("{case.device}"):',
        "# scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
    ]


def _trains(case: Case) -> bool:
    return case.phase == "training"

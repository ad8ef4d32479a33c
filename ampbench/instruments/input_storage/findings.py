"""What a study of input storage found, in sentences: is a cast saved, or is information lost."""

from ampbench.core.units import UNDEFINED, counted, format_bytes, format_error, format_ratio, format_seconds
from ampbench.instruments.input_storage.records import ACCEPTED, PROMOTED, TO_FP32, TO_LOW, InputUse, StoragePass
from ampbench.instruments.paired import BUSY, WIDEST, saved_time, saving_said, unfit
from ampbench.records.case import Case
from ampbench.records.labels import few

FREE, LOSSY, UNUSED = "nothing lost", "information lost", "not used"
"""What storing an input in half comes to: each op casts it to half anyway; an op would read it in fp32; no op reads it.

`LOSSY` says what the op is given; whether the step's numbers move is measured (`StoragePass.identical`).
"""


NAMED = 3
"""So many inputs of one fate are named in a sentence."""


def situation(use: InputUse) -> str:
    """Return which of the situations that are easily confused an input is in: `FREE`, `LOSSY` or `UNUSED`."""
    if not use.operation:
        return UNUSED
    return FREE if use.use in (ACCEPTED, TO_LOW) and not use.read_in_fp32 else LOSSY


def comes_to(found: StoragePass) -> str:
    """Return the situation of a case: `LOSSY` where one of its inputs is in it, else that of the first.

    `UNDEFINED` where it has no floating input, or does not run with its inputs in half.
    """
    situations = [situation(use) for use in found.uses]
    return LOSSY if LOSSY in situations else next(iter(situations), UNDEFINED)


def storage_said(case: Case, found: StoragePass) -> list[str]:
    """Return what storing the inputs of `case` in half saves and loses: sentences without a full stop."""
    low = found.low
    if low.error:
        return [f"the step does not run with inputs in {low.dtype}: {low.error}"]
    fates: dict[tuple[str, str, str, str], list[str]] = {}
    for use in found.uses:
        fates.setdefault((use.use, use.operation, use.module, use.read_in_fp32), []).append(use.name)
    said = [
        _fate_said(
            few(names, NAMED), len(names) > 1, next(use for use in found.uses if use.name == names[0]), low.dtype
        )
        for names in fates.values()
    ]
    spoilt = unfit(found.fitness)
    return [_result_said(case, found), *said, _savings_said(found, timed=not spoilt), *_times_said(found), *spoilt]


def _fate_said(names: str, several: bool, use: InputUse, low: str) -> str:
    """Return what becomes of inputs that share it."""
    it = "them" if several else "it"
    if situation(use) == UNUSED:
        return f"no op reads {names}"
    what = op_said(use)
    first = f"first op of {names}: {what}"
    lost = f"what rounding to {low} took away is lost"
    if use.use == TO_FP32:
        return f"{first} needs fp32 and has {it} cast back: {lost}"
    if use.use == PROMOTED:
        return f"{first} computes in fp32, as other operands of it are in fp32: {lost}"
    if use.use == TO_LOW:
        return f"{first} needs another half than {low}, so that a cast is made all the same"
    if not use.read_in_fp32:
        return f"{first} accepts {low} as it is; stored in fp32, autocast casts {it} to {low}: a cast is saved"
    if use.read_in_fp32 == use.operation:
        return (
            f"{first} computes in the dtype it is given, so in {low} now and in fp32 before: rounding comes first, and "
            "no cast is saved there"
        )
    return (
        f"{first} accepts {low} as it is, and a cast is saved; but {short_op(use.read_in_fp32)} reads {it} again, in "
        f"fp32 where stored in fp32: there {lost}"
    )


def _result_said(case: Case, found: StoragePass) -> str:
    """Return whether anything is lost, by the bits and by the errors."""
    low = found.low.dtype
    what = "outputs, loss and gradients" if case.phase == "training" else "outputs"
    lossy = any(situation(use) == LOSSY for use in found.uses)
    if found.identical:
        why = ""
        if lossy:
            why = f": {low} holds these inputs exactly" if found.exact else ": what reads them commutes with rounding"
        return f"nothing is lost: with inputs in {low}, {what} are the same to the last bit{why}"
    errors = ", ".join(_errors_said(found))
    if not found.repeatable:
        return f"bits do not tell whether anything is lost, as the step itself does not give them twice: {errors}"
    if found.exact:
        return f"{low} holds these inputs exactly, but {what} differ, as ops compute in {low} then: {errors}"
    return f"information is lost: with inputs in {low}, {what} are others: {errors}"


def _errors_said(found: StoragePass) -> list[str]:
    said = []
    for name, before, after in (
        ("output", found.full.output_rel_l2, found.low.output_rel_l2),
        ("absolute loss", found.full.loss_abs_error, found.low.loss_abs_error),
        ("gradient", found.full.grad_rel_l2, found.low.grad_rel_l2),
    ):
        if before is None and after is None:
            continue
        ratio = f" ({format_ratio(after / before)})" if before and after is not None else ""
        said.append(f"{name} error {format_error(before)} → {format_error(after)}{ratio}")
    return said or ["no error is defined"]


def _savings_said(found: StoragePass, *, timed: bool) -> str:
    """Return what is saved in bytes, casts and memory, and, where times can be trusted (`timed`), in copying."""
    full, low = found.full, found.low
    said = [f"a batch is stored in {format_bytes(low.stored_bytes)}, not {format_bytes(full.stored_bytes)}"]
    if timed and full.copy_samples and low.copy_samples:
        took = [format_seconds(min(one.copy_samples)) for one in (full, low)]
        said.append(f"its copy to the device takes {took[1]}, not {took[0]}")
    if full.casts is not None and low.casts is not None and (full.casts or low.casts):
        before = counted(full.casts, "cast")
        moved = f"{format_bytes(full.cast_bytes)} → {format_bytes(low.cast_bytes)}"
        said.append(f"{before} a step → {low.casts:,}, moving {moved}")
    if full.peak_bytes is not None and low.peak_bytes is not None:
        said.append(f"peak memory {format_bytes(full.peak_bytes)} → {format_bytes(low.peak_bytes)}")
    return "; ".join(said)


def _times_said(found: StoragePass) -> list[str]:
    if not found.full.samples or not found.low.samples:
        return []
    if unfit(found.fitness):
        return [f"the step's time: {BUSY}"]
    saved = saved_time(found.full.samples, found.low.samples)
    if saved.noisy:
        return [f"the step's time is too noisy to say: its builds differ more than {WIDEST:g} times"]
    return [f"the step: {saving_said(saved)}"]


def op_said(use: InputUse) -> str:
    """Return the first op that takes an input as tables name it."""
    return short_op(use.operation) or UNDEFINED


def short_op(operation: str) -> str:
    """Return an op's name without its namespace."""
    return operation.removeprefix("aten.")

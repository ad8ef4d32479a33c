"""What a divergence has besides errors, in words: elements that are no finite numbers, and a reference not in fp64."""

from collections.abc import Iterable
from typing import NamedTuple

from ampbench.labels import few
from ampbench.records.divergences import Divergence

THE_NETWORK = "the network, not a precision, makes them"
FP32_INSTEAD = "errors are against fp32, as the fp64 reference failed: {}"
"""What is said of a case whose reference is the fp32 step."""
AGAINST_FP32 = "against fp32: fp64 failed"
"""What stands beside an error whose reference is the fp32 step."""


class Remark(NamedTuple):
    """A sentence about a case; `of_precision`: it is about its precision, not about all those of its table."""

    text: str
    of_precision: bool = False


def not_finite(found: Divergence, of: str = "output") -> str:
    """Return what of the outputs (or, `of` "grad", gradients) is not finite, in a word or three.

    "nan" or "inf" in the precision, "nan/inf" where an older run does not tell; "nan in fp64" and "inf in fp64" where
    that begins in the reference and leaves the error undefined; "" for nothing. Infinities that reference and precision
    have in common are none of these.
    """
    if getattr(found, f"{of}_reference_nan"):
        return f"nan in {found.reference_dtype}"
    count, nan = getattr(found, f"{of}_nonfinite"), getattr(found, f"{of}_nan")
    if count:
        return "nan/inf" if nan is None else "nan" if nan else "inf"
    return f"inf in {found.reference_dtype}" if of == "output" and found.output_unlike else ""


def no_precisions_fault(found: Divergence) -> tuple[str, str] | None:
    """Return the column and words of what is not finite whatever the precision: in the reference or in fp32 itself."""
    for of, what in (("output", "output"), ("grad", "gradient")):
        if count := getattr(found, f"{of}_reference_nan"):
            elements = getattr(found, f"{of}_elements")
            said = f"{_are(count, elements, what)} NaN in {found.reference_dtype} already: {THE_NETWORK}"
            return f"{of}_reference_nonfinite", said
    count = found.output_fp32_nonfinite
    if count and found.output_elements:
        said = f"{_are(count, found.output_elements, 'output')} not finite in fp32 already, though finite in fp64"
        return "output_fp32_nonfinite", f"{said}: the network leaves fp32's range"
    return None


def remarks(found: Divergence) -> list[Remark]:
    """Return what is to be said of a case beside its numbers, the worst first."""
    said: list[Remark] = []
    fault = no_precisions_fault(found)
    if fault is not None:
        said.append(Remark(fault[1]))
    alone = found.output_nonfinite and found.output_nonfinite != (found.output_fp32_nonfinite or 0)
    if alone or (found.output_unlike and not found.output_reference_nan):
        said.append(
            Remark(found.output_undefined or f"{found.output_nonfinite:,} output elements are not finite", True)
        )
    if found.grad_nonfinite and not found.grad_reference_nan:
        said.append(Remark(found.grad_undefined or f"{found.grad_nonfinite:,} gradient elements are not finite", True))
    infinite = (found.output_reference_nonfinite or 0) - (found.output_reference_nan or 0)
    if infinite and not found.output_reference_nan and not found.output_undefined:
        where = f"{_are(infinite, found.output_elements or 0, 'output')} infinite, in {found.reference_dtype}, too"
        said.append(Remark(f"{where}: the error is that of the others"))
    if found.reference_dtype == "fp32":
        said.append(Remark(FP32_INSTEAD.format(found.reference_error)))
    elif not found.reference_dtype:
        said.append(Remark(f"no error is known, as the fp64 reference failed: {found.reference_error}"))
    counted = found.output_nonfinite or found.output_unlike or found.output_reference_nan or found.reference_error
    if found.output_undefined and not counted:
        said.append(Remark(f"no error is defined: {found.output_undefined}"))
    return said


def gathered(said: Iterable[tuple[str, str]]) -> list[str]:
    """Return pairs of a case's name and a sentence as lines: each sentence once, after the names it is true of."""
    by_sentence: dict[str, list[str]] = {}
    for name, sentence in said:
        by_sentence.setdefault(sentence, []).append(name)
    return [f"{few(named)}: {sentence}" for sentence, named in by_sentence.items()]


def _are(count: int, elements: int, what: str) -> str:
    noun = "element" if elements == 1 else "elements"
    return f"{count:,} of {elements:,} {what} {noun} {'is' if count == 1 else 'are'}"

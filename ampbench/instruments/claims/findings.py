"""The claims of a documented mixed-precision example, held against what a run measured of the workload built after it.

The document is the example of Intel Extension for PyTorch, "Auto Mixed Precision on GPU": a convolution on an XPU, in
inference (imperative, then traced and frozen) under autocast to bf16 and fp16, and in training. It says that inference
takes both dtypes and training bf16 only, that bf16 is autocast's default, and that a speedup is to be seen. The claims
are about XPU; what they come to on another device is told all the same.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.base.precisions import BASELINE
from ampbench.base.stats import ROUNDS_FOR_INTERVAL
from ampbench.base.units import counted, format_error, format_ratio, format_seconds
from ampbench.present.document import Block, Section
from ampbench.records.labels import few
from ampbench.store import StoredRun

WORKLOAD = "simple_conv"
HELD, NOT_HELD, INCONCLUSIVE, NOT_MEASURED = VERDICTS = ("held", "not held", "inconclusive", "not measured")
DOCUMENT = "the documented example of Intel's mixed-precision guide"

_AUTOCAST = {"bf16": "bf16_autocast", "fp16": "fp16_autocast"}
_WAYS = {"imperative": ("inference", "eager"), "traced and frozen": ("inference", "traced")}
_SPEEDUP = "speedup"
_REFUSING = ("exception", "crash")
"""The causes of failures that say that a case does not run."""
_SHOWN = 4
"""So many claims of one verdict are named in a sentence."""
_TOO_FEW = f"fewer than {ROUNDS_FOR_INTERVAL} rounds have no interval"
_MORE = f"--rounds {ROUNDS_FOR_INTERVAL} or more"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim on one `device`, for one size of the workload (`group`): its `verdict`, and what was `measured`.

    `what` is the claim in a few words ("speedup in training in bf16"), `verdict` one of `VERDICTS`.
    """

    device: str
    group: str
    what: str
    verdict: str
    measured: str


def documented_claims(stored: StoredRun, rows: Sequence[Row]) -> list[Claim]:
    """Return the document's claims with what `rows` of a run, as `judge.frame.run_frame` has them, say of each.

    There are none where the workload was measured in no low precision. A speedup is held where its 95% interval, over
    paired rounds, leaves no doubt of it, not held where it does; without an interval it is inconclusive.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        case = stored.cases[row["case_id"]]
        if case.workload == WORKLOAD and case.family != "user":
            groups.setdefault((case.device, case.group), []).append(row)
    found: list[Claim] = []
    for (device, group), members in groups.items():
        if any(row["outcome"] == "ok" and row["precision"] in _AUTOCAST.values() for row in members):
            found += _claims(stored, device, group, members)
    return found


def claims_said(claims: Iterable[Claim]) -> list[str]:
    """Return a sentence for each device and size: how many claims hold, and which do not or are not known to."""
    said = []
    for (device, group), members in _by_size(claims).items():
        of = {verdict: [claim for claim in members if claim.verdict == verdict] for verdict in VERDICTS}
        text = f"{DOCUMENT}, {group} on {device}: {len(of[HELD])} of {counted(len(members), 'claim')} held"
        if of[NOT_HELD]:
            first = sorted(of[NOT_HELD], key=lambda claim: claim.what.startswith(_SPEEDUP))
            text += f"; not held: {few([f'{one.what} ({one.measured})' for one in first], _SHOWN)}"
        if of[INCONCLUSIVE]:
            text += f"; {INCONCLUSIVE}: {few([one.what for one in of[INCONCLUSIVE]], _SHOWN)} ({_TOO_FEW}, {_MORE})"
        if of[NOT_MEASURED]:
            text += f"; not measured: {few([one.what for one in of[NOT_MEASURED]], _SHOWN)}"
        said.append(text)
    return said


def claims_sections(stored: StoredRun, rows: Sequence[Row]) -> list[Section]:
    """Return the tables of the document's claims, with what `rows` of a run say of each; [] where there are none."""
    blocks = claims_blocks(documented_claims(stored, rows))
    return [Section("", blocks)] if blocks else []


def claims_blocks(claims: Iterable[Claim]) -> list[Block]:
    """Return a table of the claims for each device and size."""
    return [
        Block(
            f"Claims of {DOCUMENT}",
            ["claim", "verdict", "measured"],
            [[one.what, one.verdict, one.measured] for one in members],
            f"{group} on {device}" + ("" if device == "xpu" else "; the document speaks of XPU"),
        )
        for (device, group), members in _by_size(claims).items()
    ]


def _by_size(claims: Iterable[Claim]) -> dict[tuple[str, str], list[Claim]]:
    """Return the claims of each device and group."""
    groups: dict[tuple[str, str], list[Claim]] = {}
    for claim in claims:
        groups.setdefault((claim.device, claim.group), []).append(claim)
    return groups


def _claims(stored: StoredRun, device: str, group: str, rows: Sequence[Row]) -> list[Claim]:
    def claim(what: str, verdict: str, measured: str) -> Claim:
        return Claim(device=device, group=group, what=what, verdict=verdict, measured=measured)

    found = []
    for way, (phase, path) in _WAYS.items():
        for dtype, precision in _AUTOCAST.items():
            row = _row(rows, precision, phase, path)
            found.append(claim(f"{way} inference in {dtype}", *_runs(stored, row)))
            baseline = _row(rows, BASELINE, phase, path)
            found.append(claim(f"{_SPEEDUP} in {way} inference in {dtype}", *_faster(row, baseline)))
    training = {dtype: _row(rows, precision, "training", "eager") for dtype, precision in _AUTOCAST.items()}
    found.append(claim("training in bf16", *_runs(stored, training["bf16"])))
    baseline = _row(rows, BASELINE, "training", "eager")
    found.append(claim(f"{_SPEEDUP} in training in bf16", *_faster(training["bf16"], baseline)))
    found.append(claim("training in bf16 only, not in fp16", *_refused(stored, training["fp16"])))
    described = stored.header.environment.device(device)
    default = described.autocast_dtype if described is not None else None
    verdict = NOT_MEASURED if not default else HELD if default == "bf16" else NOT_HELD
    found.append(claim("bf16 is autocast's default dtype", verdict, f"it is {default}" if default else "not known"))
    return found


def _row(rows: Iterable[Row], precision: str, phase: str, path: str) -> Row | None:
    """Return the row of a case, one that ran if there are several (another memory format, no scaler)."""
    found = [row for row in rows if (row["precision"], row["phase"], row["path"]) == (precision, phase, path)]
    return min(found, key=lambda row: row["outcome"] != "ok", default=None)


def _runs(stored: StoredRun, row: Row | None) -> tuple[str, str]:
    """Return whether a case ran and gave finite numbers, and what was measured of it.

    One that there was no time or memory for, or that someone ended, might have run.
    """
    if row is None:
        return NOT_MEASURED, "not selected"
    if row["outcome"] != "ok":
        failure = stored.failures.get(row["case_id"])
        does_not = failure is not None and failure.cause in _REFUSING
        return (NOT_HELD if does_not else NOT_MEASURED), f"{row['outcome']}: {row['reason']}"
    nonfinite, seconds = _number(row["output_nonfinite"]), format_seconds(_number(row["seconds_median"]))
    if nonfinite:
        return NOT_HELD, f"{seconds} a step, but {counted(int(nonfinite), 'output')} not finite"
    error = _number(row["output_rel_l2"])
    said = f"{seconds} a step" + ("" if error is None else f", output error {format_error(error)}")
    gradients = _number(row["grad_rel_l2"]) if row["phase"] == "training" else None
    return HELD, said + ("" if gradients is None else f", gradient error {format_error(gradients)}")


def _refused(stored: StoredRun, row: Row | None) -> tuple[str, str]:
    """Return whether a case does not run, as claimed."""
    verdict, measured = _runs(stored, row)
    return {HELD: NOT_HELD, NOT_HELD: HELD}.get(verdict, verdict), measured


def _faster(row: Row | None, baseline: Row | None) -> tuple[str, str]:
    """Return whether a case is certainly faster than fp32, by the interval of its speed round by round.

    What slows the machine down for a while slows both: that the intervals of their times overlap decides nothing.
    """
    for one, name in ((row, "it"), (baseline, BASELINE)):
        if one is None or one["outcome"] != "ok":
            return NOT_MEASURED, f"{name} was not measured"
    assert row is not None
    assert baseline is not None
    speedup = format_ratio(_number(row["speedup_vs_fp32"]))
    low, high = _number(row["speedup_low"]), _number(row["speedup_high"])
    if low is None or high is None:
        return INCONCLUSIVE, f"{speedup} the speed of fp32, but {_TOO_FEW}"
    if low > 1:
        return HELD, f"{speedup} the speed of fp32"
    doubt = "" if high < 1 else f" (95%: {format_ratio(low)} to {format_ratio(high)})"
    return NOT_HELD, f"{speedup} the speed of fp32{doubt}"


def _number(value: Any) -> float | None:
    return None if value is None or math.isnan(value) else float(value)

"""Runs the program of a check in its own process, whose end removes all side effects."""

import contextlib
import io
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from msgspec.structs import replace

from ampbench.core.units import format_share
from ampbench.defects import CHECKS
from ampbench.errors import bounded, first_line
from ampbench.records.rules import DEVICE, FAKE, NOT_OBSERVED
from ampbench.studies.check import DEFECTIVE, DIFFERS, GOOD, NOT_SHOWN, CheckAsked, Checked, digest_of
from ampbench.studies.paired import unfit
from ampbench.trace.dtypes import autocast_to, is_present, stood_in
from ampbench.worker.machine import Cpu
from ampbench.worker.timing import FitnessWatch
from ampbench.worker.worker import Work

LONGEST = 300
"""Characters of a program's output line; longer lines are cut."""
MOST_LINES = 20


def do_check(work: Work, asked: CheckAsked) -> Checked:
    """Do the task "check"; a timed check that other work spoilt shows nothing."""
    watch = FitnessWatch(Cpu())  # such checks are of a CPU
    result = run_program(asked.check, asked.text, work.device_type)
    if not CHECKS[asked.check].timed or result.why:
        return result
    spoilt = unfit(watch.seen())
    if spoilt is None:
        return result
    why = f"other work took {format_share(spoilt)} of the CPU while this was timed: do not trust its times"
    return replace(result, outcome=NOT_SHOWN, how=NOT_OBSERVED, seen="", why=why)


def run_program(check: str, text: str, device: str) -> Checked:
    """Return the outcome of a check's program `text` on `device`; an error of the program is part of it.

    It does not restore torch's switches: call it in its own process.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    written, problem = io.StringIO(), ""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(written), _on(device):
        warnings.simplefilter("always")
        try:
            exec(compile(text, f"<check {check}>", "exec"), namespace)
        except Exception as error:  # noqa: BLE001 - any error of torch is the finding
            problem = first_line(error)
    expected, observed = (_line(namespace.get(name, "")) for name in ("expected", "seen"))
    why = problem and f"the program ended with {_line(problem)}"
    good = bool(namespace.get("good", observed == expected))
    wrong = DIFFERS if CHECKS[check].by_design else DEFECTIVE
    outcome = NOT_SHOWN if why else GOOD if good else wrong
    printed = {f"expected: {expected}", f"seen:     {observed}"}
    return Checked(
        device=device,
        check=check,
        outcome=outcome,
        how=NOT_OBSERVED if why else DEVICE if is_present(device) else FAKE,
        program=digest_of(text),
        expected=expected,
        seen="" if why else observed,
        said=[_line(line) for line in written.getvalue().splitlines() if line not in printed][:MOST_LINES],
        warned=list(dict.fromkeys(_line(f"{warning.category.__name__}: {warning.message}") for warning in caught)),
        why=why,
        seconds=time.perf_counter() - began,
    )


@contextlib.contextmanager
def _on(device: str) -> Iterator[None]:
    """Within, tensors on `device` can be made and autocast to it entered, real or, where it is absent, fake."""
    real = torch.autocast

    def autocast(kind: str, dtype: torch.dtype | None = None, enabled: bool = True) -> AbstractContextManager[object]:
        if kind != device:
            return real(kind, dtype=dtype, enabled=enabled)
        return autocast_to(kind, dtype or torch.get_autocast_dtype(kind), enabled)

    with stood_in(device):
        if is_present(device):
            yield
            return
        with mock.patch.object(torch, "autocast", autocast):
            yield


def _line(text: object) -> str:
    return bounded(" ".join(str(text).split()), LONGEST)

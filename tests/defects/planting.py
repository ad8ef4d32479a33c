"""Runs the program of a check in a child process, with a defect planted in its torch."""

import multiprocessing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ampbench.defects import CHECKS, program_of
from ampbench.studies.check import Checked
from ampbench.studies.devices_measure import run_program

Plant = Callable[[], AbstractContextManager[Any]]


def outcome_of(name: str, plant: Plant = nullcontext, device: str = "cpu") -> Checked:
    """Return what a check comes to where `plant` has put its defect into torch."""
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)

    def child() -> None:
        with plant():
            theirs.send(run_program(name, program_of(CHECKS[name], device), device))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    theirs.close()
    try:
        found: Checked = ours.recv()
    finally:
        process.join()
    return found

"""The proof of advice: trainings of many programs in every precision, against the verdicts of `ampbench`.

`python -m benchmarks.self.outcomes FILE` trains `benchmarks.self.programs` from three seeds and appends a line of FILE
for each ended training, which is never repeated. `--part 1/4` does a quarter of the missing ones, `--workers N` several
at a time.

The rule of outcomes, fixed before the trainings: of the weights evaluated in fp32, the mean loss over the last quarter
of the steps, on training batches and on held-out data. A precision is unsafe where a training does not end finite, or
where one of the two losses is worse than fp32's

* by 5% on average and by 3 standard deviations of fp32's seeds, or
* by 10% on average and by 5% from every seed.

Else it is safe. Verdicts (`--verdicts`): missed is ok though unsafe, recognised is ok and safe; undecided is neither.
"""

import argparse
import dataclasses
import itertools
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import msgspec
import torch

from ampbench.core.precisions import BASELINE, DEFAULT, PRECISIONS, SHORT_DTYPES
from ampbench.drive.planning import lack
from ampbench.records.case import Case
from ampbench.records.measured import Score
from ampbench.studies.training import CONTROL, Training
from ampbench.studies.training_measure import train
from ampbench.worker.environment import read_environment
from ampbench.worker.machine import open_device
from ampbench.workload import Workload
from benchmarks.self.programs import PROGRAMS, SEEDS

FIT, HELD_OUT = LOSSES = "training", "held-out"
"""The data of the two losses that decide an outcome."""
END = 3 / 4
"""Losses from this share of the steps on are the end of a training."""
WORSE, DEVIATIONS = 0.05, 3
MUCH_WORSE, EACH_WORSE = 0.10, 0.05


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An ended training of a program by `commit`: its `losses` at the end by data, None where not finite or ended."""

    program: str
    precision: str
    seed: int
    arm: str
    commit: str
    losses: dict[str, float | None]
    skipped: int = 0
    ended_at: int | None = None
    error: str = ""


class Key(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Names a training."""

    program: str
    precision: str
    seed: int
    arm: str = ""


def main() -> None:
    """Train what the file lacks of this part."""
    options = argparse.ArgumentParser(description="The proof of advice.")
    options.add_argument("file", type=Path)
    options.add_argument("--part", default="1/1")
    options.add_argument("--workers", type=int, default=os.cpu_count())
    asked = options.parse_args()
    part, _, parts = asked.part.partition("/")
    keys = list(trainings())[int(part) - 1 :: int(parts)]
    done = {key_of(line) for line in read(asked.file)}
    train_all([key for key in keys if key not in done], asked.file, asked.workers)


def trainings() -> Iterator[Key]:
    """Yield the trainings, seed by seed; emulated precisions come last within a seed."""
    names = available()
    for seed, slow in itertools.product(SEEDS, (False, True)):
        for program, precision in itertools.product(PROGRAMS, names):
            if (PRECISIONS[precision].rounding == "float16") is slow:
                for arm in ("", CONTROL) if precision == BASELINE else ("",):
                    yield Key(program=program, precision=precision, seed=seed, arm=arm)


def available() -> list[str]:
    """Return the precisions of this machine's CPU, without torch's default, which is fp32 there."""
    described = next(device for device in read_environment().devices if device.type == "cpu")
    rows = [(name, row) for name, row in PRECISIONS.items() if name != DEFAULT]
    return [name for name, row in rows if not lack(described, case_of(next(iter(PROGRAMS)), name), row)]


def key_of(line: Line) -> Key:
    """Return the training that a line holds."""
    return Key(program=line.program, precision=line.precision, seed=line.seed, arm=line.arm)


def train_all(keys: Sequence[Key], path: Path, workers: int) -> None:
    """Train `keys` with several workers and append a line for each."""
    with path.open("a") as file, ProcessPoolExecutor(workers, get_context("spawn"), initializer=_alone) as pool:
        waiting = [pool.submit(trained, key, _commit()) for key in keys]
        for number, future in enumerate(as_completed(waiting), start=1):
            file.write(msgspec.json.encode(future.result()).decode() + "\n")
            file.flush()
            print(f"{number:,} of {len(keys):,}", file=sys.stderr)


def _alone() -> None:
    torch.set_num_threads(1)


def _commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def read(path: Path) -> list[Line]:
    """Return the lines of a file, and cut off one without an end, which a killed run leaves."""
    text = path.read_text() if path.exists() else ""
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text)
    return [msgspec.json.decode(line, type=Line) for line in text.splitlines()]


def case_of(program: str, precision: str) -> Case:
    """Return the case of a program in a precision."""
    return Case(
        workload="".join(letter if letter.isalnum() else "_" for letter in program),
        family="outcomes",
        parameters={},
        precision=precision,
        device="cpu",
        phase="training",
        path="eager",
        batch_size=None,
        input_dtype=SHORT_DTYPES[PRECISIONS[precision].storage],
        memory_format="contiguous",
    )


def workload_of(program: str, seed: int) -> Workload:
    """Return the network of a program with its batches, optimizer and schedule, before training."""
    recipe = PROGRAMS[program]
    return dataclasses.replace(
        recipe.make(seed),
        optimizer=lambda parameters: recipe.optimizer(parameters, recipe.rate),
        schedule=lambda optimizer, _: torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.share),
    )


def trained(key: Key, commit: str) -> Line:
    """Return the line of a training."""
    case = case_of(key.program, key.precision)
    blank = Training(case_id=case.case_id, seed=key.seed, arm=key.arm, steps=PROGRAMS[key.program].steps)
    training = train(workload_of(key.program, key.seed), case, open_device("cpu"), blank)
    broken = training.ended_at is not None or bool(training.error)
    scores = {FIT: training.fits, HELD_OUT: training.scores}
    return Line(
        program=key.program,
        precision=key.precision,
        seed=key.seed,
        arm=key.arm,
        commit=commit,
        losses={name: None if broken else ending(scores[name], training.steps) for name in LOSSES},
        skipped=len(training.skipped),
        ended_at=training.ended_at,
        error=training.error,
    )


def ending(scores: Iterable[Score], steps: int) -> float | None:
    """Return the mean loss over the scores in the last quarter of the steps, None where one is not finite."""
    losses = [score.loss for score in scores if score.step >= END * steps]
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    return statistics.fmean(finite) if losses and len(finite) == len(losses) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a precision in a program; `ratios` are its losses over fp32's, means over seeds."""

    program: str
    precision: str
    safe: bool
    ratios: Mapping[str, float | None]


def outcomes(lines: Iterable[Line]) -> list[Outcome]:
    """Return the outcome of each precision, and of fp32's control, in each program that has all of its seeds."""
    by_key = {key_of(line): line.losses for line in lines}
    listed = []
    rows = dict.fromkeys((key.program, key.precision, key.arm) for key in by_key)
    for program, precision, arm in rows:
        keys = [Key(program=program, precision=precision, seed=seed, arm=arm) for seed in SEEDS]
        exact = [Key(program=program, precision=BASELINE, seed=seed) for seed in SEEDS]
        if (precision == BASELINE and not arm) or not by_key.keys() >= {*keys, *exact}:
            continue
        pairs = {name: ([by_key[key][name] for key in keys], [by_key[key][name] for key in exact]) for name in LOSSES}
        listed.append(
            Outcome(
                program=program,
                precision=arm or precision,
                safe=not any(itertools.starmap(is_worse, pairs.values())),
                ratios={name: ratio_of(*pair) for name, pair in pairs.items()},
            )
        )
    return listed


def ratio_of(losses: Sequence[float | None], exact: Sequence[float | None]) -> float | None:
    """Return the mean of `losses` over the mean of fp32's."""
    known = [loss for loss in losses if loss is not None]
    return statistics.fmean(known) / statistics.fmean(_known(exact)) if len(known) == len(losses) else None


def _known(losses: Iterable[float | None]) -> list[float]:
    return [loss for loss in losses if loss is not None]


def is_worse(losses: Sequence[float | None], exact: Sequence[float | None]) -> bool:
    """Return whether losses, seed by seed, are worse than fp32's by the rule at the top of this module."""
    ratio, fp32 = ratio_of(losses, exact), _known(exact)
    if ratio is None:
        return True
    gap = (ratio - 1) * statistics.fmean(fp32)
    certain = ratio >= 1 + WORSE and gap >= DEVIATIONS * statistics.stdev(fp32)
    each = [loss >= (1 + EACH_WORSE) * own for loss, own in zip(_known(losses), fp32, strict=True)]
    return certain or (ratio >= 1 + MUCH_WORSE and all(each))


if __name__ == "__main__":
    main()

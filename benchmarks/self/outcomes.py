"""The proof of advice: trainings of many programs in every precision, against the verdicts of `ampbench`.

`python -m benchmarks.self.outcomes FILE` trains `benchmarks.self.programs` from three seeds and appends a line of FILE
for each ended training, which is never repeated. `--part 1/4` does a quarter of the missing ones, `--workers N` several
at a time.

The rule of outcomes, fixed before the trainings: of the weights evaluated in fp32, the mean loss over the last quarter
of the steps, on training batches and on held-out data. A precision is unsafe where a training does not end finite, or
where one of the two losses is worse than fp32's

* by 5% on average and by 3 standard deviations of fp32's seeds, or
* by 10% on average and by 5% from every seed.

Else it is safe.

`--verdicts FILE` also measures the missing verdicts at this commit, as `ampbench.measure` gives them to the weights of
the first seed: at the place of a default run, and at one's own checkpoint, fp32's weights with their optimizer state
after 7/8 of the steps. It prints the tables of `docs/advice.md`. A missed row is ok though unsafe, a recognised one ok
and safe; an undecided one is neither. The last third of the programs is left out without `--last`.
"""

import argparse
import dataclasses
import itertools
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from scipy.stats import binomtest

import ampbench
from ampbench.core.precisions import BASELINE, PRECISIONS, SHORT_DTYPES
from ampbench.core.units import format_error
from ampbench.records.case import Case
from ampbench.records.changes import Status
from ampbench.records.measured import Score
from ampbench.show.document import markdown_table
from ampbench.studies.training import CONTROL, Training
from ampbench.studies.training_measure import train
from ampbench.worker.machine import open_device, precision_flags
from ampbench.worker.step import build_training, seed_all
from ampbench.workload import Workload
from benchmarks.self.programs import LAST, PROGRAMS, SEEDS

FIT, HELD_OUT = LOSSES = "training", "held-out"
"""The data of the two losses that decide an outcome."""
END = 3 / 4
"""Losses from this share of the steps on are the end of a training."""
WORSE, DEVIATIONS = 0.05, 3
MUCH_WORSE, EACH_WORSE = 0.10, 0.05
TRAINED = (
    "fp32", "fp16_autocast", "bf16_autocast", "fp16_master", "bf16_master", "fp16_pure", "bf16_pure",
)  # fmt: skip
RUN, CHECKPOINT = PLACES = "default run", "own checkpoint"
"""The places in a training whose verdicts are compared with its outcome."""
LATE_SHARE = 7 / 8


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


class Judged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The verdict of `commit` on a precision at a place of a program."""

    program: str
    place: str
    precision: str
    commit: str
    status: str
    code: str
    number: float | None
    limit: float | None


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
    options.add_argument("--verdicts", type=Path)
    options.add_argument("--last", action="store_true")
    asked = options.parse_args()
    part, _, parts = asked.part.partition("/")
    keys = list(trainings())[int(part) - 1 :: int(parts)]
    done = {key_of(line) for line in read(asked.file, Line)}
    do_all(trained, [(key,) for key in keys if key not in done], asked.file, asked.workers)
    if asked.verdicts is not None:
        programs = [name for name in PROGRAMS if asked.last or name not in LAST]
        commit = _commit()
        known = {(line.program, line.place) for line in read(asked.verdicts, Judged) if line.commit == commit}
        missing = [pair for pair in itertools.product(programs, PLACES) if pair not in known]
        do_all(judged, missing, asked.verdicts, asked.workers)
        verdicts = [line for line in read(asked.verdicts, Judged) if line.commit == commit]
        listed = [outcome for outcome in outcomes(read(asked.file, Line)) if outcome.program in programs]
        for table in tables(listed, verdicts):
            print(f"{table}\n")


def trainings() -> Iterator[Key]:
    """Yield the trainings, seed by seed; emulated precisions come last within a seed."""
    for seed, slow in itertools.product(SEEDS, (False, True)):
        for program, precision in itertools.product(PROGRAMS, TRAINED):
            if (PRECISIONS[precision].rounding == "float16") is slow:
                for arm in ("", CONTROL) if precision == BASELINE else ("",):
                    yield Key(program=program, precision=precision, seed=seed, arm=arm)


def key_of(line: Line) -> Key:
    """Return the training that a line holds."""
    return Key(program=line.program, precision=line.precision, seed=line.seed, arm=line.arm)


def do_all(
    work: Callable[..., Sequence[msgspec.Struct]], calls: Sequence[tuple[object, ...]], path: Path, workers: int
) -> None:
    """Call `work` with each of `calls` and the commit, in several processes, and append a line for each result."""
    with path.open("a") as file, ProcessPoolExecutor(workers, get_context("spawn"), initializer=_alone) as pool:
        waiting = [pool.submit(work, *call, _commit()) for call in calls]
        for number, future in enumerate(as_completed(waiting), start=1):
            file.writelines(msgspec.json.encode(line).decode() + "\n" for line in future.result())
            file.flush()
            print(f"{number:,} of {len(calls):,}", file=sys.stderr)


def _alone() -> None:
    torch.set_num_threads(1)


def _commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


Stored = TypeVar("Stored", Line, Judged)


def read(path: Path, kind: type[Stored]) -> list[Stored]:
    """Return the lines of a file, and cut off one without an end, which a killed run leaves."""
    text = path.read_text() if path.exists() else ""
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text)
    return [msgspec.json.decode(line, type=kind) for line in text.splitlines()]


def case_of(program: str, precision: str) -> Case:
    """Return the case of a program in a precision."""
    return Case(
        workload="".join(letter if letter.isalnum() else "_" for letter in program), family="outcomes",
        parameters={}, precision=precision, device="cpu", phase="training", path="eager", batch_size=None,
        input_dtype=SHORT_DTYPES[PRECISIONS[precision].storage], memory_format="contiguous",
    )  # fmt: skip


def workload_of(program: str, seed: int) -> Workload:
    """Return the network of a program with its batches, optimizer and schedule, before training."""
    recipe = PROGRAMS[program]
    return dataclasses.replace(
        recipe.make(seed),
        optimizer=lambda parameters: recipe.optimizer(parameters, recipe.rate),
        schedule=lambda optimizer, _: torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.share),
    )


def trained(key: Key, commit: str) -> list[Line]:
    """Return the line of a training, alone in a list."""
    case = case_of(key.program, key.precision)
    blank = Training(case_id=case.case_id, seed=key.seed, arm=key.arm, steps=PROGRAMS[key.program].steps)
    training = train(workload_of(key.program, key.seed), case, open_device("cpu"), blank)
    broken = training.ended_at is not None or bool(training.error)
    scores = {FIT: training.fits, HELD_OUT: training.scores}
    line = Line(
        program=key.program, precision=key.precision, seed=key.seed, arm=key.arm, commit=commit,
        losses={name: None if broken else ending(scores[name], training.steps) for name in LOSSES},
        skipped=len(training.skipped), ended_at=training.ended_at, error=training.error,
    )  # fmt: skip
    return [line]


def ending(scores: Iterable[Score], steps: int) -> float | None:
    """Return the mean loss over the scores in the last quarter of the steps, None where one is not finite."""
    losses = [score.loss for score in scores if score.step >= END * steps]
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    return statistics.fmean(finite) if losses and len(finite) == len(losses) else None


def checkpoint(program: str, seed: int) -> Workload:
    """Return a program as fp32 has it after `LATE_SHARE` of the steps: weights, optimizer state, rate, next batches."""
    workload, recipe, device = workload_of(program, seed), PROGRAMS[program], open_device("cpu")
    done = round(LATE_SHARE * recipe.steps)
    seed_all(seed)
    with precision_flags(PRECISIONS[BASELINE]):
        step = build_training(workload, case_of(program, BASELINE), device)
        for number in range(done):
            for group in step.optimizer.param_groups:
                group["lr"] = recipe.rate * recipe.share(number)
            step.take_batch(number)
            step.run()
    workload.module.load_state_dict(step.module.state_dict())
    turn = done % len(workload.inputs)
    return dataclasses.replace(
        workload,
        inputs=[*workload.inputs[turn:], *workload.inputs[:turn]],
        targets=[*workload.targets[turn:], *workload.targets[:turn]],
        optimizer=lambda parameters: recipe.optimizer(parameters, recipe.rate * recipe.share(done)),
        optimizer_state=step.optimizer.state_dict(),
    )


def judged(program: str, place: str, commit: str) -> list[Judged]:
    """Return the verdicts on a program at a place."""
    workload = (workload_of if place == RUN else checkpoint)(program, SEEDS[0])
    result = ampbench.measure(workload, precisions=TRAINED, device="cpu", phase="training", budget=0.1)
    return [
        Judged(
            program=program, place=place, precision=verdict.precision, commit=commit,
            status=verdict.status, code=verdict.code or "", number=verdict.number, limit=verdict.limit,
        )
        for verdict in result.verdicts
        if verdict.precision != BASELINE
    ]  # fmt: skip


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


Rule = Callable[[Outcome], bool]
"""Whether a precision is ok, by a verdict or a constant rule."""


def tables(listed: Iterable[Outcome], verdicts: Iterable[Judged]) -> Iterator[str]:
    """Yield the tables of `docs/advice.md`: all rows, kinds of rows, and each wrong verdict."""
    listed = list(listed)
    by_row = {(line.program, line.precision, line.place): line for line in verdicts}
    rows = [row for row in listed if all((row.program, row.precision, place) in by_row for place in PLACES)]
    controls = [row for row in listed if row.precision == CONTROL]
    yield (
        f"{len({row.program for row in rows})} programs, {len(rows)} rows; the rule calls "
        f"{sum(not row.safe for row in controls)} of {len(controls)} fp32 controls unsafe."
    )
    rules: dict[str, Rule] = {
        place: lambda row, place=place: by_row[row.program, row.precision, place].status == Status.OK  # type: ignore[misc]
        for place in PLACES
    }
    rules |= {"refuse pure half, allow the rest": lambda row: not row.precision.endswith("_pure")}
    rules |= {"refuse nothing": lambda _: True}
    yield markdown_table(["verdict", "missed", "recognised"], [[name, *_rates(rows, rules[name])] for name in rules])
    kinds = dict.fromkeys(_kind(row) for row in rows)
    cells = [
        [kind, place, *_rates([row for row in rows if _kind(row) == kind], rules[place])]
        for kind, place in itertools.product(kinds, PLACES)
    ]
    yield markdown_table(["precision", "verdict", "missed", "recognised"], cells)
    for wrong, safe in (("missed", False), ("false alarm", True)):
        cells = [
            [row.program, row.precision, _ratios(row)]
            + [_decided(by_row[row.program, row.precision, place]) for place in PLACES]
            for row in rows
            if row.safe is safe and any(rules[place](row) is not safe for place in PLACES)
        ]
        yield markdown_table([wrong, "precision", "losses over fp32's", *PLACES], cells)


def _kind(row: Outcome) -> str:
    return row.precision.partition("_")[2]


def _rates(rows: Sequence[Outcome], ok: Rule) -> list[str]:
    """Return the shares of missed rows and of recognised ones, each with Wilson's 95% interval."""
    return [_share([ok(row) for row in rows if row.safe is safe]) for safe in (False, True)]


def _share(hits: Collection[bool]) -> str:
    if not hits:
        return "–"
    low, high = binomtest(sum(hits), len(hits)).proportion_ci(method="wilson")
    return f"{sum(hits)} of {len(hits)} ({low:.0%} to {high:.0%})"


def _ratios(row: Outcome) -> str:
    return ", ".join(f"{name} " + ("–" if ratio is None else f"{ratio:.3g}x") for name, ratio in row.ratios.items())


def _decided(line: Judged) -> str:
    """Return a verdict with the number that decided it and its limit."""
    sizes = f" {format_error(line.number)} > {format_error(line.limit)}" if line.status == Status.REFUSED else ""
    return f"{line.status}: {line.code}{sizes}" if line.code and line.status != Status.OK else line.status


if __name__ == "__main__":
    main()

"""Whether advice comes true: whole trainings in every precision, compared with the advice after one step.

`python -m benchmarks.self.outcomes FILE` trains four small networks by three recipes each from three seeds, judges
them by `ampbench.judge.verdict` after one step, and prints the tables of `docs/advice.md`; with `--held-out`, fourteen
other trainings that chose nothing (`benchmarks.self.trainings`). Each ended training is a line of FILE and is not
repeated; steps are repeated at another commit. `--only trainings` and `--only steps` do one of the two, with
`--workers N` processes. `--settled` trains again from the settled scale where GradScaler's default scale is too large.
"""

import argparse
import dataclasses
import itertools
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO
from unittest.mock import patch

import msgspec
import torch
from msgspec import structs

from ampbench.core.budget import Budget
from ampbench.core.precisions import BASELINE, DEFAULT, PRECISIONS, SHORT_DTYPES
from ampbench.core.recipes import CONSTANT, rate_share
from ampbench.core.units import format_error, format_share
from ampbench.drive.planning import lack
from ampbench.judge import frame
from ampbench.judge.verdict import scale_hint, verdicts_of
from ampbench.records.case import Case, WorkloadSource
from ampbench.records.changes import Status
from ampbench.records.kinds import TRAINING
from ampbench.records.measured import Divergence, Round
from ampbench.records.run import SCHEMA, Header, Selection, Settings
from ampbench.show.document import markdown_table
from ampbench.show.wording import against
from ampbench.store import StoredRun, gathered
from ampbench.studies.headroom import fit
from ampbench.studies.headroom_measure import measure_ranges
from ampbench.studies.training import CONTROL, Training, learned
from ampbench.studies.training_measure import train
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.environment import read_environment
from ampbench.worker.machine import open_device, precision_flags
from ampbench.worker.sources import build_workload
from ampbench.worker.step import build_training, seed_all
from ampbench.workload import Workload
from ampbench.workloads.index import WORKLOADS
from benchmarks.self.trainings import HELD_OUT, NETWORKS, PROOF, RECIPES, Proof, Setting

EARLY, LATE = PLACES = "early", "late"
"""The weights of the one step: the first ones, or fp32's after `LATE_SHARE` of the training."""
NEVER = "1970-01-01T00:00:00+00:00"
"""The time of runs made of a proof's lines, which have none."""
LATE_SHARE = 7 / 8
"""The middle of the last quarter, whose loss judges a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the file: one training of a setting, or the divergence of one step of it, measured by `commit`.

    A training with an `init_scale` is begun at that scale, not at GradScaler's default.
    """

    setting: Setting
    commit: str
    precision: str
    training: Training | None = None
    place: str = ""
    divergence: Divergence | None = None
    init_scale: float | None = None


SYNTHETIC = ("mlp", "simple_conv", "resnet18", "decoder_lm")
"""Built-in networks with synthetic weights, for comparison with trained ones."""


def main() -> None:
    """Train and measure the missing lines of the file, and print the tables."""
    options = argparse.ArgumentParser(description="Whether advice comes true.")
    options.add_argument("file", type=Path)
    options.add_argument("--only", choices=("trainings", "steps"))
    options.add_argument("--workers", type=int, default=os.cpu_count())
    options.add_argument("--held-out", action="store_true")
    options.add_argument("--settled", action="store_true")
    asked = options.parse_args()
    path, proof = asked.file, HELD_OUT if asked.held_out else PROOF
    lines = list(_read(path))
    work = [] if asked.only == "steps" else list(_trainings(proof))
    work += [] if asked.only == "trainings" else list(_steps(proof))
    with path.open("a") as file:
        known = _worked(work, lines, file, proof, asked.workers)
        if asked.settled:
            known = _worked(_from_settled(known, proof), lines, file, proof, asked.workers)
    for table in tables(known, proof):
        print(f"{table}\n")
    if asked.settled:
        print(settled_table(known, proof))


Key = tuple[str, str, str, int, str, str, float | None]
"""Network, recipe, precision ("": all, one after the other), seed, arm, of a step its place, and `Line.init_scale`."""


def _worked(work: Sequence[Key], lines: list[Line], file: TextIO, proof: Proof, workers: int) -> list[Line]:
    """Do the `work` without a line yet, write and add its lines, and return the lines valid for this commit."""
    commit = _commit()
    done = {_key(line, proof) for line in lines if line.training is not None or line.commit == commit}
    left = [key for key in work if key not in done]
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_alone) as pool:
        waiting = [pool.submit(_do, *key, commit) for key in left]
        for number, future in enumerate(as_completed(waiting), start=1):
            for line in future.result():
                file.write(msgspec.json.encode(line).decode() + "\n")
                lines.append(line)
            file.flush()
            print(f"{number:,} of {len(left):,}", file=sys.stderr)
    return [line for line in lines if line.training is not None or line.commit == commit]


def _key(line: Line, proof: Proof) -> Key:
    training = line.training
    if training is None:
        return line.setting.network, line.setting.recipe, "", proof.seeds[0], "", line.place, None
    return line.setting.network, line.setting.recipe, line.precision, training.seed, training.arm, "", line.init_scale


def _trainings(proof: Proof) -> Iterator[Key]:
    """Yield the trainings, seed by seed, so that a run cut short has whole seeds.

    Precisions that a CPU emulates come last, setting by setting.
    """
    names = available(proof.settings[0])
    pairs = list(itertools.product(proof.seeds, proof.settings))
    for slow in (False, True):
        for seed, setting in sorted(pairs, key=lambda pair: proof.settings.index(pair[1])) if slow else pairs:
            for precision in (name for name in names if (PRECISIONS[name].rounding == "float16") is slow):
                for arm in ("", CONTROL) if precision == BASELINE else ("",):
                    yield setting.network, setting.recipe, precision, seed, arm, "", None


def _steps(proof: Proof) -> Iterator[Key]:
    """Yield the steps that advice is asked of; the precisions of a setting and place share a reference."""
    for setting, place in itertools.product(proof.settings, PLACES):
        yield setting.network, setting.recipe, "", proof.seeds[0], "", place, None


def settled_scales(lines: Iterable[Line]) -> dict[tuple[Setting, str], float]:
    """Return the settled scale of the first step, where advice recommends it."""
    return {
        (line.setting, line.precision): line.divergence.scaler_scale
        for line in lines
        if line.place == EARLY and scale_hint(line.divergence)
    }


def _from_settled(lines: Iterable[Line], proof: Proof) -> list[Key]:
    """Return the trainings that begin at the scale that settled."""
    return [
        (setting.network, setting.recipe, precision, seed, "", "", scale)
        for seed in proof.seeds
        for (setting, precision), scale in settled_scales(lines).items()
    ]


def available(setting: Setting) -> list[str]:
    """Return the precisions of this machine's CPU, without torch's default, which is fp32 there."""
    described = next(device for device in read_environment().devices if device.type == "cpu")
    rows = [(name, row) for name, row in PRECISIONS.items() if name != DEFAULT]
    return [name for name, row in rows if not lack(described, case_of(setting, name), row)]


def case_of(setting: Setting, precision: str) -> Case:
    """Return the case of a setting in a precision."""
    return Case(
        workload=setting.name.replace(", ", "/").replace(" ", "_"),
        family="outcomes",
        parameters={},
        precision=precision,
        device="cpu",
        phase="training",
        path="eager",
        batch_size=NETWORKS[setting.network].batch_size,
        input_dtype=SHORT_DTYPES[PRECISIONS[precision].storage],
        memory_format="contiguous",
    )


def workload_of(setting: Setting, seed: int) -> Workload:
    """Return the network of a setting with its batches, before training."""
    network, schedule = NETWORKS[setting.network], RECIPES[setting.recipe].schedule

    def scheduled(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_share(schedule, step, steps))

    return dataclasses.replace(
        network.make(seed),
        optimizer=lambda parameters: network.optimizer(parameters, setting.rate),
        schedule=None if schedule == CONSTANT else scheduled,
    )


def late_workload(setting: Setting, seed: int) -> Workload:
    """Return a setting's network as fp32 has it after `LATE_SHARE` of the steps, with state, rate and next batch."""
    workload, device, recipe = workload_of(setting, seed), open_device("cpu"), RECIPES[setting.recipe]
    done = round(LATE_SHARE * setting.steps)
    seed_all(seed)
    with precision_flags(PRECISIONS[BASELINE]):
        step = build_training(workload, case_of(setting, BASELINE), device)
        for number in range(done + 1):
            for group in step.optimizer.param_groups:
                group["lr"] = setting.rate * rate_share(recipe.schedule, number, setting.steps)
            if number < done:
                step.run()
    workload.module.load_state_dict(step.module.state_dict())
    turn = done % len(workload.inputs)
    rate, network = step.optimizer.param_groups[0]["lr"], NETWORKS[setting.network]
    return dataclasses.replace(
        workload,
        inputs=[*workload.inputs[turn:], *workload.inputs[:turn]],
        targets=[*workload.targets[turn:], *workload.targets[:turn]],
        optimizer=lambda parameters: network.optimizer(parameters, rate),
        optimizer_state=step.optimizer.state_dict(),
    )


def _alone() -> None:
    torch.set_num_threads(1)


def _do(
    network: str, recipe: str, precision: str, seed: int, arm: str, place: str, init_scale: float | None, commit: str
) -> list[Line]:
    """Return the training of this key, or the steps in all precisions."""
    setting = Setting(network=network, recipe=recipe)
    line = Line(setting=setting, commit=commit, precision=precision, place=place, init_scale=init_scale)
    if place:
        workload = workload_of(setting, seed) if place == EARLY else late_workload(setting, seed)
        references, device, lines = References(), open_device("cpu"), []
        for name in available(setting):
            divergence = measure_divergence(workload, case_of(setting, name), device, references)
            lines.append(dataclasses.replace(line, precision=name, divergence=divergence))
        return lines
    workload, case = workload_of(setting, seed), case_of(setting, precision)
    begun = {} if init_scale is None else {"init_scale": init_scale}
    with patch("torch.amp.GradScaler", partial(torch.amp.GradScaler, **begun)):
        start = Training(case_id=case.case_id, seed=seed, arm=arm, steps=setting.steps)
        training = train(workload, case, open_device("cpu"), start)
    return [dataclasses.replace(line, training=training)]


def _read(path: Path) -> Iterator[Line]:
    """Yield the lines of a file; one without an end, which a killed run leaves, is trained again."""
    text = path.read_text() if path.exists() else ""
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text)
    decoder = msgspec.json.Decoder(Line)
    for line in text.splitlines():
        yield decoder.decode(line)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or os.environ.get("OUTCOMES_COMMIT", "")


RIGHT_SAFE, RIGHT_UNSAFE, MISSED, FALSE, OPEN = CELLS = (
    "right: safe",
    "right: unsafe",
    "missed",
    "false alarm",
    "open",
)
"""What became of advice: within budget and trains as fp32 does; neither; within budget and does not; objected to in
vain; and whether it trains as fp32 does is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a precision in a setting, and one step's objection by place ("": none)."""

    setting: Setting
    precision: str
    trains: bool | None
    score: str
    ratio: float | None
    objections: Mapping[str, str] = field(default_factory=dict)

    def cell(self, *places: str) -> str:
        """Return which of `CELLS` it is where a step at each of these places counts."""
        if self.trains is None:
            return OPEN
        objected = any(self.objections.get(place) for place in places)
        if objected:
            return FALSE if self.trains else RIGHT_UNSAFE
        return RIGHT_SAFE if self.trains else MISSED


def outcomes(lines: Iterable[Line], proof: Proof = PROOF) -> list[Outcome]:
    """Return the outcome of every precision in every trained setting."""
    lines = list(lines)
    studies = {study.workload: study for study in learned([_trained_run(lines, len(proof.seeds))])}
    objected = {place: objections([line for line in lines if line.place == place]) for place in PLACES}
    listed = []
    for setting in proof.settings:
        study = studies.get(case_of(setting, BASELINE).group)
        for row in study.judged if study is not None else ():
            case_id = row.case_id
            listed.append(
                Outcome(
                    setting=setting,
                    precision=row.name,
                    trains=row.trains,
                    score=row.first.verdict.value if row.first.verdict is not None else "",
                    ratio=None if row.fit.difference is None else 1 + row.fit.difference,
                    objections={place: reasons.get(case_id, "") for place, reasons in objected.items()},
                )
            )
    return listed


def _trained_run(lines: Iterable[Line], seeds: int) -> StoredRun:
    """Return the trainings of a file as a run that studied trainings."""
    header = _header(explains=TRAINING, asked={"steps": 1, "seeds": seeds})
    trained = [(case_of(line.setting, line.precision), line.training) for line in lines if line.training is not None]
    return gathered(Path("outcomes"), header, [entry for pair in trained for entry in pair])


def objections(lines: Iterable[Line]) -> dict[str, str]:
    """Return the objection to each case after one step, by id; "" without one, whatever its time."""
    verdicts = verdicts_of(_stepped_run(lines), Budget())
    return {
        case_id: ""
        if verdict.status is Status.OK
        else against(verdict.code, verdict.number, verdict.limit, verdict.subject)
        for case_id, verdict in verdicts.items()
        if verdict.status is not Status.BASELINE
    }


def _stepped_run(lines: Iterable[Line]) -> StoredRun:
    """Return single steps as a run that measured; all of them took a second."""
    stored = StoredRun(path=Path("outcomes"), header=_header())
    for line in lines:
        if line.divergence is not None:
            case = case_of(line.setting, line.precision)
            stored.cases[case.case_id] = case
            stored.divergence[case.case_id] = line.divergence
            stored.rounds.append(
                Round(
                    case_id=case.case_id,
                    round=0,
                    server=0,
                    samples=[[1.0]],
                    steps_per_sample=[1],
                    warmup_steps=[0],
                    items_per_step=1.0,
                    weights_digest=line.divergence.weights_digest,
                    seconds=1.0,
                    finished_at=NEVER,
                )
            )
    return stored


def _header(**fields: Any) -> Header:
    return Header(
        schema=SCHEMA,
        run="outcomes",
        ampbench_version="",
        started_at=NEVER,
        selection=Selection(),
        settings=Settings(),
        environment=read_environment(),
        **fields,
    )


def tables(lines: Iterable[Line], proof: Proof = PROOF) -> Iterator[str]:
    """Yield the tables of `docs/advice.md`: counts, every training, trained beside synthetic networks."""
    lines = [line for line in lines if line.init_scale is None]
    listed = outcomes(lines, proof)
    yield f"{len(proof.settings)} trainings, {len(listed)} pairs of training and precision; commits: {_commits(lines)}."
    yield counts_table(listed)
    yield precisions_table(listed)
    yield settings_table(listed)
    yield reasons_table(listed)
    if proof is PROOF:
        yield trained_table(lines)


def _commits(lines: Iterable[Line]) -> str:
    return ", ".join(sorted({line.commit for line in lines}))


ASKED = MappingProxyType({"at the beginning": (EARLY,), "late": (LATE,), "at both": PLACES})
"""The places of the steps that advice is based on."""


def counts_table(listed: list[Outcome]) -> str:
    """Return how often the advice of a step comes true, by the step's place."""
    rows = []
    for place, places in ASKED.items():
        counts = Counter(outcome.cell(*places) for outcome in listed)
        safe, unsafe = counts[RIGHT_SAFE] + counts[FALSE], counts[RIGHT_UNSAFE] + counts[MISSED]
        shares = [f"{counts[cell]} of {whole}" for cell, whole in ((RIGHT_SAFE, safe), (RIGHT_UNSAFE, unsafe))]
        rows.append([place, *shares, *(str(counts[cell]) for cell in (MISSED, FALSE, OPEN))])
    return markdown_table(["asked", "safe, and said to be", "unsafe, and said to be", *CELLS[2:]], rows)


def precisions_table(listed: list[Outcome]) -> str:
    """Return the same for each precision, asked at both places."""
    rows = []
    for name in dict.fromkeys(outcome.precision for outcome in listed):
        counts = Counter(outcome.cell(*PLACES) for outcome in listed if outcome.precision == name)
        early = Counter(outcome.cell(EARLY) for outcome in listed if outcome.precision == name)
        rows.append([name, *(str(counts[cell]) for cell in CELLS), str(early[MISSED])])
    return markdown_table(["precision", *CELLS, "missed at the beginning"], rows)


def settings_table(listed: list[Outcome]) -> str:
    """Return each precision's training loss over fp32's, outcome and advice in each training."""
    names = list(dict.fromkeys(outcome.precision for outcome in listed))
    rows = []
    for setting in dict.fromkeys(outcome.setting for outcome in listed):
        by_precision = {outcome.precision: outcome for outcome in listed if outcome.setting == setting}
        rows.append([setting.name, *(_advice(by_precision[name]) if name in by_precision else "–" for name in names)])
    return markdown_table(["training", *names], rows)


def _advice(outcome: Outcome) -> str:
    refused = [place for place in PLACES if outcome.objections.get(place)]
    return f"{_became(outcome)}, {'refused ' + ' and '.join(refused) if refused else 'within budget'}"


def _became(outcome: Outcome) -> str:
    ratio = "–" if outcome.ratio is None else f"{outcome.ratio:.3g}x"
    trains = {True: "trains", False: "does not", None: "open"}[outcome.trains]
    return f"{ratio} {trains}"


def settled_table(lines: Iterable[Line], proof: Proof) -> str:
    """Return the outcomes of trainings from the settled scale and from GradScaler's default.

    Training loss over fp32's, outcome, and the steps that GradScaler skipped, seed by seed.
    """
    lines = list(lines)
    scales = settled_scales(lines)
    cells = {key: [key[0].name, key[1], f"{scale:,.0f}"] for key, scale in scales.items()}
    for begun in ({}, scales):
        chosen = [line for line in lines if line.init_scale == begun.get((line.setting, line.precision))]
        known = {(outcome.setting, outcome.precision): outcome for outcome in outcomes(chosen, proof)}
        for (setting, precision), row in cells.items():
            trained = {
                line.training.seed: str(len(line.training.skipped))
                for line in chosen
                if line.training is not None and (line.setting, line.precision) == (setting, precision)
            }
            outcome = known.get((setting, precision))
            row += ["–" if outcome is None else _became(outcome), ", ".join(trained[seed] for seed in sorted(trained))]
    headers = ["training", "precision", "settled at", "from the default", "skipped", "from there", "skipped"]
    return markdown_table(headers, list(cells.values()))


def reasons_table(listed: list[Outcome]) -> str:
    """Return the objections to each refused precision, with their place and outcome."""
    rows = [
        [outcome.setting.name, outcome.precision, place, outcome.objections[place], outcome.cell(place)]
        for outcome in listed
        for place in PLACES
        if outcome.objections.get(place)
    ]
    return markdown_table(["training", "precision", "asked", "objection", "outcome"], rows)


MEASURES = ("output_floor_ratio", "grad_rel_l2", "argmax_agreement", "update_kept")


def trained_table(lines: Iterable[Line]) -> str:
    """Return errors in bf16 autocast and the reach of fp16, of trained and synthetic networks."""
    lines, rows = list(lines), []
    for setting in PROOF.settings:
        if setting.recipe != "usual rate":
            continue
        for place in PLACES:
            steps = [line for line in lines if line.place == place and line.setting == setting]
            if steps:
                workload = workload_of(setting, 0) if place == EARLY else late_workload(setting, 0)
                when = "first weights" if place == EARLY else "trained"
                rows.append([f"{setting.network}, {when}", *_measured(steps), *_reach(workload, steps[0].setting)])
    for name in SYNTHETIC:
        rows.append([f"{name} (built in, small)", *_synthetic(name)])
    headers = ["network", "times the floor", "gradient error", "agreement", "update kept, bf16_pure", "reach of fp16"]
    return markdown_table(headers, rows)


def _measured(lines: Iterable[Line]) -> list[str]:
    rows = frame.run_rows(_stepped_run(lines))
    return _errors({row["precision"]: row for row in rows})


def _errors(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    low, pure = rows.get("bf16_autocast", {}), rows.get("bf16_pure", {})
    floor, agreement, kept = low.get("output_floor_ratio"), low.get("argmax_agreement"), pure.get("update_kept")
    return [
        "–" if floor is None else f"{floor:.2f}",
        format_error(low.get("grad_rel_l2")),
        "–" if agreement is None else format_share(agreement),
        "–" if kept is None else f"{kept:.3f}",
    ]


def _reach(workload: Workload, setting: Setting | None, case: Case | None = None) -> list[str]:
    """Return the largest magnitude of activations and their gradients in one fp32 step over fp16's maximum."""
    case = case or case_of(setting or PROOF.settings[0], BASELINE)
    ranges = measure_ranges(workload, case, open_device("cpu"), 1, [])
    reaches = [fit(magnitudes, "fp16").reach for magnitudes in ranges.magnitudes]
    largest = max((reach for reach in reaches if reach is not None), default=math.nan)
    return ["–" if math.isnan(largest) else format_share(min(largest, 1.0))]


def _synthetic(name: str) -> list[str]:
    """Return the cells of a built-in network's training step at the small preset."""
    spec = WORKLOADS[name]
    module = f"ampbench.workloads.{spec.family}"
    source = WorkloadSource(name=name, family=spec.family, module=module, function=name, builtin=True)
    parameters = dict(spec.preset("small"))
    workload, references, device = build_workload(source, parameters, 0), References(), open_device("cpu")
    setting = PROOF.settings[0]
    lines = []
    for precision in (BASELINE, "bf16_autocast", "bf16_pure"):
        case = structs.replace(case_of(setting, precision), batch_size=parameters.get("batch_size"))
        divergence = measure_divergence(workload, case, device, references)
        divergence = structs.replace(divergence, case_id=case_of(setting, precision).case_id)
        lines.append(Line(setting=setting, commit="", precision=precision, place=EARLY, divergence=divergence))
    case = structs.replace(case_of(setting, BASELINE), batch_size=parameters.get("batch_size"))
    return [*_measured(lines), *_reach(workload, None, case)]


if __name__ == "__main__":
    main()

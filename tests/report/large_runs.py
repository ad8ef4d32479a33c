"""A stored run of many networks."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from ampbench.records.case import Case
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Entry
from ampbench.result import Result
from ampbench.show.rows import grouped
from ampbench.store import RunWriter, StoredRun, read_run, run_files
from tests.stored_runs import COMPLETE, change_divergence

STORED = Path(__file__).parents[2] / "results" / "demo"
"""A run of the real program, whose records those of a zoo are made of."""
KINDS_OF_NETWORKS = (
    "resnet", "resnext", "vgg", "densenet", "mobilenetv3", "efficientnet", "regnetx", "regnety", "convnext",
    "inception", "vit", "deit", "beit", "swin", "maxvit", "coat", "levit", "pit", "twins", "mixer", "resmlp",
    "gmlp", "poolformer",
    "ghostnet", "mnasnet", "hrnet", "dla", "nfnet", "rexnet", "sknet", "volo", "xcit", "cait", "crossvit", "edgenext",
    "focalnet", "hiera", "mambaout", "nest", "tinyvit",
)  # fmt: skip
SIZES_OF_NETWORKS = ("atto", "tiny", "small", "base", "large")


def write_zoo_run(
    results: Path, networks: int = 200, run: str = "zoo", seed: int = 0, threads: int = 2, library: str = "timm"
) -> Path:
    """Write a run of many named networks in five precisions, every third of them in training, too.

    Each has the records of a case of the stored run `STORED` with times, memory and errors of its own: what gains, by
    its kind and its size. One network in 40 failed whole, one in 50 was skipped whole, and some overflow in fp16.
    """
    [file] = run_files(STORED)
    stored = read_run(file)
    measured = [row for row in Result(stored).rows if row["outcome"] == "ok" and not row["output_worst_name"]]
    templates = list(grouped(measured).items())
    generator = np.random.default_rng(seed)
    names = [f"{library}:{kind}_{size}" for size, kind in product(SIZES_OF_NETWORKS, KINDS_OF_NETWORKS)][:networks]
    entries: list[Entry] = []
    cases: list[Case] = []
    for place, name in enumerate(names):
        size = generator.lognormal(0, 0.5)
        kind = np.random.default_rng(place % len(KINDS_OF_NETWORKS)).lognormal(0, 0.35)
        for phase in ("inference", "training")[: 1 + (place % 3 == 0)]:
            tables = [rows for group, rows in templates if group.phase == phase]
            for row in tables[place % len(tables)]:
                old = stored.cases[row["case_id"]]
                case = replace(
                    old, workload=name, family=library, batch_size=8, parameters={"image": 224, "weights": "random"}
                )
                cases.append(case)
                if place % 40 == 7:
                    message = f"RuntimeError: a network of {name.split(':')[1]} needs {int(200 * size)} GiB"
                    entries.append(Failure(case_id=case.case_id, stage="memory", cause="exception", message=message))
                elif place % 50 == 9:
                    entries.append(
                        Skip(case_id=case.case_id, reason="timm is not installed: pip install 'ampbench[timm]'")
                    )
                else:
                    entries += _of_zoo(stored, old, case, size, kind, generator)
    header = replace(
        stored.header,
        run=run,
        label="",
        selection=replace(stored.header.selection, workloads=["timm:*"]),
        environment=replace(stored.header.environment, threads=threads),
    )
    with RunWriter.create(results, header, cases) as writer:
        writer.append(*entries, COMPLETE)
    return writer.path


def _of_zoo(
    stored: StoredRun, old: Case, case: Case, size: float, kind: float, generator: np.random.Generator
) -> Iterator[Entry]:
    """Yield the records of a stored case as those of another network."""
    half = case.precision != "fp32"
    slower = size * (kind * float(generator.lognormal(0, 0.1)) if half else 1.0)
    error = kind**-2 * float(generator.lognormal(0, 0.3)) if half else 1.0
    for each in stored.rounds:
        if each.case_id == old.case_id and not each.control:
            samples = [[slower * sample for sample in build] for build in each.samples]
            yield replace(each, case_id=case.case_id, samples=samples, cpu_samples=None)
    memory = stored.memory[old.case_id]
    yield replace(memory, case_id=case.case_id, peak_bytes=int((1 + size) * memory.peak_bytes))
    found = stored.divergence[old.case_id]
    if case.precision.startswith("fp16") and kind < 0.6:
        yield change_divergence(
            found, case_id=case.case_id, output_nonfinite=8, output_nan=0, output_rel_l2=None, outputs=None,
            output_undefined="8 of 8,000 output elements are infinite",
        )  # fmt: skip
    else:
        outputs = [replace(one, rel_l2=one.rel_l2 and error * one.rel_l2) for one in found.output.tensors or ()]
        known = found.output.rel_l2 and error * found.output.rel_l2
        yield change_divergence(found, case_id=case.case_id, output_rel_l2=known, outputs=outputs or None)

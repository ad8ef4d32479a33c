"""The atlas: networks of three libraries in every precision of a CPU: `python -m benchmarks.atlas`, or `make atlas`.

A run measures `TOGETHER` networks of a library in one phase. `make atlas` keeps complete runs in `results/atlas`,
resumes interrupted ones and measures the rest. The site has what `page` makes of it.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from ampbench.errors import CASE_FAILED
from ampbench.records.labels import emulated_of
from ampbench.report.material import gather
from ampbench.show.document import Section, cut, markdown
from ampbench.show.networks import brought, missing, tables
from ampbench.show.results import machine
from ampbench.store import list_runs, read_run

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "atlas"

TIMM = (
    "beit_base_patch16_224", "caformer_s18", "cait_xxs24_224", "coatnet_nano_rw_224", "convit_tiny",
    "convmixer_768_32", "convnextv2_atto", "cspdarknet53", "davit_tiny", "deit3_small_patch16_224", "dla34",
    "eca_nfnet_l0", "edgenext_xx_small", "efficientformerv2_s0", "efficientvit_b0", "ese_vovnet19b_dw",
    "eva02_tiny_patch14_224", "fasternet_t0", "fastvit_t8", "fbnetv3_b", "focalnet_tiny_srf", "ghostnet_100",
    "gmlp_ti16_224", "halonet26t", "hgnetv2_b0", "hiera_tiny_224", "hrnet_w18_small", "inception_next_atto",
    "inception_v4", "lcnet_050", "levit_128s", "mambaout_femto", "maxvit_nano_rw_256", "mixer_s32_224",
    "mobilenetv4_conv_small", "mobileone_s0", "mobilevit_xxs", "mvitv2_tiny", "nf_resnet50", "poolformer_s12",
    "pvt_v2_b0", "rdnet_tiny", "regnetz_b16", "repvgg_a0", "repvit_m0_9", "res2net50_26w_4s", "resmlp_12_224",
    "resnest14d", "resnetv2_50", "rexnet_100", "sequencer2d_s", "seresnet50", "swiftformer_xs",
    "swinv2_cr_tiny_ns_224", "tf_efficientnet_lite0", "tiny_vit_5m_224", "vit_small_patch16_224", "volo_d1_224",
    "xception41", "xcit_nano_12_p16_224",
)  # fmt: skip
"""A small network of each of sixty architectures, chosen for breadth."""
TRANSFORMERS = (
    "albert", "bart", "bert", "bloom", "deberta-v2", "distilbert", "falcon", "fnet", "gemma", "gpt2", "gpt_neox",
    "llama", "mamba", "mistral", "modernbert", "opt", "phi", "qwen3", "t5", "xlnet",
)  # fmt: skip
"""Encoders, decoders and encoder-decoders, with attention of every kind or none."""
PHASES = ("inference", "training")
TRAINED = 3
"""One network in this many is also measured in training."""
TRAINED_IN = ("fp32", "bf16_autocast", "bf16_pure")
"""The precisions of trainings: CPUs emulate fp16, 4 to 40 times slower, and its training would take a night."""
TOGETHER = 20
"""The networks of a run: after a night that ends early, the earlier runs are complete."""
SETTINGS = (
    "--rounds", "3", "--min-run-time", "1s", "--memory-limit", "10GiB", "--threads", "2",
)  # fmt: skip
"""The fewest rounds with an interval, each of a second, so that a step of 0.1 s is timed ten times."""
OF_PHASE = {
    "inference": ("--timeout", "20"),
    "training": (*(word for name in TRAINED_IN for word in ("--precision", name)), "--timeout", "60"),
}
"""Inference over 20 s, as of large networks in emulated fp16, times out: a minute each would fill the night."""

MOST = 15
"""The most networks of a phase on the page, the largest gains; the report has all."""


def networks() -> dict[str, tuple[str, ...]]:
    """Return the names of all networks by library: torchvision's are all that classify images."""
    from torchvision import models  # takes seconds

    return {
        "torchvision": tuple(models.list_models(module=models)),
        "timm": TIMM,
        "transformers": TRANSFORMERS,
    }


@dataclass(frozen=True, slots=True)
class Planned:
    """A run of the atlas: its `label`, its `workloads`, and their phase."""

    label: str
    workloads: tuple[str, ...]
    phase: str


def plan(names: Mapping[str, Sequence[str]], only: str = "*") -> list[Planned]:
    """Return the runs of the atlas in their order: all networks in inference, then every third of them in training."""
    planned = []
    for phase in PHASES:
        for library, library_names in names.items():
            every = library_names if phase == "inference" else library_names[::TRAINED]
            chosen = [name for short in every if fnmatch(name := f"{library}:{short}", only)]
            for place, start in enumerate(range(0, len(chosen), TOGETHER), 1):
                together = tuple(chosen[start : start + TOGETHER])
                planned.append(Planned(f"atlas {library} {phase} {place}", together, phase))
    return planned


def command(planned: Planned, results: Path) -> list[str] | None:
    """Return the command that measures or resumes a run, None for a complete one.

    A stored run with this label and other networks, of an earlier list, does not count.
    """
    ampbench = [sys.executable, "-m", "ampbench", "run"]
    for file in reversed(list_runs(results)):
        stored = read_run(file)
        same = sorted(stored.header.selection.workloads) == sorted(planned.workloads)
        if stored.header.label == planned.label and same:
            if stored.complete:
                return None
            return [*ampbench, "--resume", stored.header.run, "--results", str(results)]
    return [
        *ampbench, *planned.workloads, "--phase", planned.phase, *SETTINGS, *OF_PHASE[planned.phase],
        "--label", planned.label, "--results", str(results),
    ]  # fmt: skip


def measure(planned: Sequence[Planned], results: Path) -> int:
    """Measure the missing runs; return 0, or the exit code of a run that failed, other than for its cases."""
    for place, run in enumerate(planned, 1):
        words = command(run, results)
        progress = f"{place} of {len(planned)}: {run.label}, {len(run.workloads)} networks"
        print(f"{progress}: {'complete' if words is None else 'measuring'}", file=sys.stderr, flush=True)
        if words is not None:
            code = subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode
            if code not in (0, CASE_FAILED):
                return code
    folder = results.relative_to(ROOT) if results.is_relative_to(ROOT) else results
    print(
        f"complete; to publish: gzip {folder}/runs/*.jsonl; make docs; ampbench report {folder} -o atlas.html",
        file=sys.stderr,
    )
    return 0


HEAD = "**{where}**\n\nAll intervals are 95%: a network's over its rounds, a precision's over its networks."


def sections(results: Path) -> tuple[str, list[Section]]:
    """Return the machine that the runs of a folder were measured on, and the tables of its networks."""
    material = gather([str(results)], results)
    header = material.shown[-1].stored.header
    parts = [" · ".join(machine(header, "cpu"))]
    if (described := header.environment.device("cpu")) is not None:
        ran = {row["precision"] for row in material.rows if row["outcome"] == "ok"}
        if halves := emulated_of(described, ran):
            dtypes = " and ".join(halves)
            parts.append(f"This CPU emulates {dtypes}: {dtypes} times say nothing about other devices.")
    listed: list[Section] = []
    for phase in PHASES:
        measured = [network for network in material.networks if network.rows[0]["phase"] == phase]
        rows = [row for row in material.rows if row["phase"] == phase]
        blocks = (
            [brought(measured), *(cut(block, MOST) for block in tables(measured)), missing(rows)] if measured else []
        )
        listed.append(Section(f"In {phase}", [block for block in blocks if block.rows]))
    return ". ".join(parts), listed


def page(results: Path) -> str:
    """Return the tables of the stored runs, as the site has them."""
    where, listed = sections(results)
    return f"{HEAD.format(where=where)}\n\n{markdown(listed)}"


def main() -> int:
    """Measure the atlas."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.atlas", description=__doc__)
    parser.add_argument(
        "--only", metavar="PATTERN", default="*", help="Measure networks of such names, as in timm:vit_*."
    )
    parser.add_argument("--results", metavar="DIR", type=Path, default=RESULTS)
    asked = parser.parse_args()
    return measure(plan(networks(), asked.only), asked.results)


if __name__ == "__main__":
    sys.exit(main())

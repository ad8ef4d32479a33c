"""What makes each command take seconds: options put in behind its verb.

`QUICKER` are put in where the command does not give them itself; `SHORTER`, how long it studies, whatever it gives.
`STAND_INS` are executed in the place of networks and batches whose size is not what the command is about. This, and
what `sandbox.PLACEHOLDERS` puts for names, is all that is changed in what a page says.
"""

import re
from typing import Any

from ampbench.cli.main import build, member
from tests.documented.pages import Command

_TINY = {"preset": "--preset tiny", "threads": "--threads 1"}
_BF16 = {"precision": "--precision bf16_autocast"}
_MLP = {"names": "mlp"}
QUICKER: dict[str, dict[str, str]] = {
    "run": _TINY
    | _BF16
    | _MLP
    | {"phase": "--phase inference", "rounds": "--rounds 1", "min_run_time": "--min-run-time 0.001"},
    "ab": _TINY
    | _BF16
    | _MLP
    | {"phase": "--phase inference", "blocks": "--rounds 1", "min_run_time": "--min-run-time 0.001"},
    "explain casts": _TINY | _MLP,
    "explain headroom": _TINY | _BF16 | _MLP | {"steps": "--steps 1"},
    "explain origin": _TINY | _MLP,
    "explain keep-fp32": _TINY | _BF16 | _MLP | {"max_trials": "--max-trials 3"},
    "explain rules": {"device": "--device cpu"},
    "study training": _TINY | {"names": "digits"},
    "study scope": _TINY | _MLP,
    "study input-storage": _TINY | _MLP | {"phase": "--phase inference"},
    "study ceilings": {"operation": "--operation copy", "dtype": "--dtype fp32", "threads": "--threads 1"},
}
"""By verb: the parameter, and what gives it. A command with --resume gets none: all is its run's own."""

STAND_INS = {
    "torchvision:resnet50": "torchvision:squeezenet1_1",
    "timm:vit_small_*": "timm:test_vit?",
    "resnet18": "simple_conv",
    "resnet50": "simple_conv",
}
"""By the network that a command names: a smaller one of its library, or family, that goes the same way."""
SMALLER_FILES = {"batch_size=4096": "batch_size=64"}
"""The same of what the files of a page say."""

REFUSED = {"op": "output"}
"""Parameters that are not put in beside another one, which refuses them."""

SHORTER: dict[str, list[str]] = {
    "study training": ["--steps 4", "--seeds 2"],
    "study scope": ["--steps 2", "--seconds 50ms"],
    "study input-storage": ["--seconds 50ms"],
    "study ceilings": ["--seconds 10ms"],
}
"""By verb: what is put in whatever the command gives, in the place of that."""

PYTEST = ["-p no:cacheprovider", "--benchmark-max-time=0.001", "--benchmark-min-rounds=1", "--amp-preset tiny"]


def quicken(command: Command) -> str:
    """Return the text of a command that takes seconds."""
    if command.program == "pytest":
        given = command.text
        narrower = ["--amp-precision bf16_pure"] * ("--amp-precision" not in given)
        narrower += ["-k mlp --amp-phase inference"] * given.endswith("--benchmark-only")
        return re.sub(r"^pytest", " ".join(["python -m pytest", *PYTEST, *narrower]), given)
    verb = command.verb
    if command.program != "ampbench" or verb not in QUICKER or "--resume" in command.words:
        return command.text
    given = _given(command)
    added = [text for name, text in QUICKER[verb].items() if not given & {name, REFUSED.get(name)}]
    text = command.text
    for shorter in SHORTER.get(verb, []):
        flag, _ = shorter.split()
        text = re.sub(rf" {flag}[ =]\S+", "", text)
        added.append(shorter)
    return text.replace(f"ampbench {verb}", " ".join(["ampbench", verb, *added]), 1)


def with_stand_ins(command: Command, text: str) -> str:
    """Return the text of a command with what stands for its networks, where it measures them."""
    if command.verb in QUICKER:
        for network, stand_in in STAND_INS.items():
            text = re.sub(rf'(?<=[ "]){re.escape(network)}(?=[ "]|$)', stand_in, text)
    return text


def smaller(text: str) -> str:
    """Return the text of a file with what stands for its sizes."""
    for size, stand_in in SMALLER_FILES.items():
        text = text.replace(size, stand_in)
    return text


def context_of(command: Command, *, lenient: bool = False) -> Any:
    """Return click's context of a call of ampbench; raises click's errors for what does not exist.

    lenient: an argument that is required may be missing.
    """
    if not command.verb:
        return build().make_context("ampbench", command.words[1:], resilient_parsing=True)
    parser = member(command.verb)
    if lenient:
        for parameter in parser.params:
            parameter.required = False
    return parser.make_context(command.verb, command.words[1 + len(command.verb.split()) :])


def _given(command: Command) -> set[str]:
    context = context_of(command)
    given = {name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"}
    return given | {"names"} if "workload" in given else given

"""`ampbench explain` and its verbs: how they are found and set, and what `rules` prints, stores and compares."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.cli import main as program
from ampbench.records.kinds import RULES
from ampbench.records.measured import Failure
from ampbench.records.rules import RuleProbe
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import list_runs, read_run
from tests.rule_probes import observation, probe
from tests.stored_runs import make_header

Run = Callable[..., Any]
PROBES = Path(__file__).parents[2] / "results" / "rules"
OLD, NEW = PROBES / "torch-2.11.0.jsonl.gz", PROBES / "torch-2.15.0.jsonl.gz"


def test_help_lists_its_verbs_and_theirs_has_examples(ampbench: Run) -> None:
    said = ampbench("explain", "--help")
    assert said.code == 0
    assert "\n  rules " in said.out
    said = ampbench("explain", "rules", "--help")
    assert said.code == 0
    assert "  ampbench explain rules --device" in said.out.partition("Examples:")[2]


def test_every_option_of_its_verbs_can_be_set_by_its_long_name() -> None:
    assert set(program.GROUPS) <= set(program.VERBS)
    assert {"device", "verbose", "format"} <= {option.name for option in program.verb("explain rules").params}


@pytest.mark.parametrize(
    ("arguments", "forbidden"),
    [
        (["explain", "rules", "--help"], ("torch", "torchvision", "pandas", "scipy", "numpy", "rich")),
        (["show", str(NEW)], ("torch", "torchvision", "pandas", "scipy")),
    ],
)
def test_what_is_not_needed_is_not_imported(arguments: list[str], forbidden: tuple[str, ...]) -> None:
    code = (
        "import sys; from ampbench.cli.main import main\n"
        f"code = main({arguments!r})\n"
        f"sys.exit(code or ','.join(sorted(sys.modules.keys() & set({forbidden!r}))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stored_probe_begins_with_what_disagrees_and_fits_a_hundred_columns(ampbench: Run) -> None:
    said = ampbench("show", NEW)
    assert (said.code, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= 100
    order = [said.out.index(title) for title in ("cpu: ", "cuda (fake tensors): ", "xpu (fake", "Disagreements")]
    assert order == sorted(order)
    assert "Every op" not in said.out


class Worker:
    """Stand in for the workers: each device type has a made-up probe, but for those in `ending`, which end so."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.ending: dict[str, Failure | type[BaseException]] = {
            "xpu": Failure(case_id="", stage="rules", cause="crash", message="ended by signal SIGABRT")
        }

    def serve(self, request: Request) -> Reply:
        if request.task == "environment":
            return reply_with(make_header().environment)
        self.asked.append(request)
        ending = self.ending.get(request.device)
        if isinstance(ending, Failure):
            return Reply(failure=ending)
        if ending is not None:
            raise ending
        made = observation("aten::rms_norm", observed="float32", device=request.device)
        return reply_with(probe(made, device=request.device))

    def close(self) -> None:
        pass


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    channel = Worker()
    monkeypatch.setattr("ampbench.studies.work.ServerChannel", lambda **_: channel)
    return channel


def test_each_device_is_probed_by_its_own_process_and_stored(worker: Worker, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--device", "cpu", "--device", "cuda", "--timeout", "9")
    (path,) = list_runs(tmp_path / "results")
    stored = read_run(path)
    assert said.code == 0
    assert [(one.device, one.threads, one.timeout_seconds, one.fresh) for one in worker.asked] == [
        (device, 1, 9.0, True) for device in ("cpu", "cuda")
    ]
    assert (stored.header.explains, stored.ended) == (RULES, "complete")
    assert list(stored.of(RuleProbe)) == stored.header.selection.devices == ["cpu", "cuda"]
    assert ampbench("show", path).out == said.out


def test_two_probes_compared_say_what_changed_and_only_that(ampbench: Run) -> None:
    said = ampbench("compare", OLD, NEW)
    assert said.code == 0
    assert "rms_norm on cuda, xpu: unlisted → float32" in said.out
    assert "Disagreements" not in said.out

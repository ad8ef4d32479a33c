"""`ampbench explain` and its verbs: how they are found and set, and what `rules` prints, stores and compares."""

import csv
import io
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain"], "missing command; see ampbench explain --help"),
        (["explain", "ruels"], "unknown explain verb 'ruels': did you mean rules?"),
        (["explain", "rules", "--devcie", "cpu"], "unknown option --devcie: did you mean --device"),
        (["explain", "rules", "--device", "cud"], "unknown device 'cud': did you mean cuda"),
        (["explain", "rules", "--json", "--format", "csv"], "contradict each other"),
    ],
)
def test_a_usage_error_is_one_line(arguments: list[str | Path], message: str, ampbench: Run) -> None:
    said = ampbench(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("ampbench: error: ")
    assert message in said.err
    assert said.err.count("\n") == 1


def test_every_option_of_its_verbs_can_be_set_by_its_long_name() -> None:
    assert set(program.GROUPS) <= set(program.VERBS)
    assert {"device", "verbose", "format"} <= program.verb("explain rules").settable().keys()


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


def test_all_lists_every_op(ampbench: Run) -> None:
    said = ampbench("show", NEW, "--all")
    assert max(map(len, said.out.splitlines())) <= 100
    words = [line.split() for line in said.out.partition("Every op")[2].splitlines()]
    assert ["softmax.int", "cpu", "–", "unlisted", "no", "unlisted"] in words
    assert ["lstm_cell", "cpu", "–", "unlisted", "no", "lower", "inside"] in words
    assert "not observed: this torch has no such op" in " ".join(said.out.split())
    known = {one.name for each in read_run(NEW).of(RuleProbe).values() for one in each.observations}
    assert len(words) >= len(known)


def test_csv_has_a_row_per_op_device_and_dtype(ampbench: Run) -> None:
    found = rows(ampbench("show", NEW, "--format", "csv").out)
    assert len(found) == 214 * 3 * 2
    (one,) = [row for row in found if (row["op"], row["device"], row["dtype"]) == ("aten::prelu", "xpu", "float16")]
    assert (one["xpu_reference"], one["pytorch_page"]) == ("lower_precision", "unlisted")
    assert (one["observed"], one["how"], one["disagreements"]) == ("lower_precision", "fake tensors", "undocumented")


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


def test_a_device_whose_worker_crashed_says_so_and_the_others_are_told(
    worker: Worker, tmp_path: Path, ampbench: Run
) -> None:
    said = ampbench("explain", "rules", "--device", "xpu", "--device", "cpu")
    assert said.code == 3
    assert "xpu: autocast could not be probed: crash: ended by signal SIGABRT." in said.out
    assert "cpu: documents, dispatcher and observation disagree about 0 of 1 op." in said.out
    assert ampbench("explain", "rules", "--resume", list_runs(tmp_path / "results")[0]).code == 3
    assert len(worker.asked) == 2


def test_an_interruption_keeps_the_devices_probed_by_then_and_can_be_resumed(
    worker: Worker, tmp_path: Path, ampbench: Run
) -> None:
    worker.ending = {"cuda": KeyboardInterrupt}
    said = ampbench("explain", "rules", "--device", "cpu", "--device", "cuda")
    (path,) = list_runs(tmp_path / "results")
    assert said.code == 130
    assert (list(read_run(path).of(RuleProbe)), read_run(path).ended) == (["cpu"], "interrupted")
    worker.ending = {}
    assert ampbench("explain", "rules", "--resume", path).code == 0
    assert [one.device for one in worker.asked] == ["cpu", "cuda", "cuda"]
    assert list(read_run(path).of(RuleProbe)) == ["cpu", "cuda"]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))

"""The code to paste: what it calls, that its names are no patterns, and that it errs what the trial erred."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampbench.base.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.drive.planning import find_sources
from ampbench.instruments.keep_fp32.findings import code
from ampbench.records.case import Case
from tests.instruments.keep_fp32.searches import CASE, found

ROOT = Path(__file__).parents[3]

MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
        self.norm = torch.nn.LayerNorm(16)
        self.add_module("odd[0]*", torch.nn.Linear(16, 16))
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.get_submodule("odd[0]*")(self.norm(x + self.body(x))))


class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50_000, 16)
        self.body = Net()

    def forward(self, ids, weights=None):
        rows = self.embed(ids).sum(dim=1)
        return self.body(rows if weights is None else rows * weights)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Net()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(torch.nn.functional.dropout(self.body(x), training=self.training))


def make():
    return Net(), torch.randn(8, 16)


def normed():
    network = Normed()
    torch.nn.init.constant_(network.norm.running_var, 4.0)
    return network, torch.randn(8, 16)


def tokens():
    return Tokens(), torch.randint(2050, 50_000, (8, 5))


def named():
    return Tokens(), {"ids": torch.randint(2050, 50_000, (8, 5)), "weights": torch.rand(8, 1)}
"""

SCRIPT = """
import copy
import sys

import torch
sys.path.insert(0, ".")
import model as models

torch.set_num_threads(1)
torch.manual_seed(0)
model, inputs = getattr(models, sys.argv[1])()
doubled = torch.utils._pytree.tree_map(lambda x: x.double() if x.is_floating_point() else x, inputs)
with torch.inference_mode():
    exact = copy.deepcopy(model).double().eval()
    expected = exact(**doubled) if isinstance(doubled, dict) else exact(doubled)
    pasted = open("pasted.py").read()
    exec(pasted.replace("model(inputs)", "model(**inputs)") if isinstance(inputs, dict) else pasted)
print(float((output.double() - expected).norm() / expected.norm()))
"""


def lines(precision: str, *kept: str, **case: object) -> list[str]:
    return code(found(*kept), dataclasses.replace(CASE, precision=precision, **case)).splitlines()  # type: ignore[arg-type]


def test_autocast_is_entered_after_the_modules_are_kept() -> None:
    assert lines("fp16_autocast", "norm", "head") == [
        "import torch",
        "",
        "import ampbench",
        "",
        "model.eval()",
        'ampbench.keep_fp32(model, "norm", "head")',
        'with torch.autocast("cpu", dtype=torch.float16):',
        "    output = model(inputs)  # or model(*inputs), model(**inputs)",
    ]


def test_a_pure_network_is_kept_before_it_is_moved_and_gives_back_its_own_dtype() -> None:
    assert lines("bf16_pure", "norm") == [
        "import torch",
        "from torch.utils._pytree import tree_map_only",
        "",
        "import ampbench",
        "",
        "model.eval()",
        'ampbench.keep_fp32(model, "norm", cast_back=True)',
        "model = model.to(torch.bfloat16)  # after keep_fp32: what is kept stays fp32",
        "inputs = tree_map_only(",
        "    torch.Tensor, lambda x: x.bfloat16() if x.is_floating_point() else x, inputs",
        ")",
        "output = model(inputs)  # or model(*inputs), model(**inputs)",
    ]


def test_a_network_that_trains_is_left_in_its_mode_and_has_its_targets_in_half_too() -> None:
    text = lines("fp16_pure", "norm", phase="training")
    assert "model.eval()" not in text
    assert "inputs = tree_map_only(  # targets, too" in text


def test_a_network_that_is_to_run_in_fp32_needs_no_code() -> None:
    assert lines("fp16_autocast", "") == lines("bf16_pure", "") == []


def test_nothing_to_keep_is_nothing_to_paste() -> None:
    assert code(found(), CASE) == ""
    assert code(found(found=None), CASE) == ""


def test_training_in_fp16_autocast_is_told_of_its_scaler() -> None:
    text = "\n".join(lines("fp16_autocast", "norm", phase="training", device="cuda"))
    assert 'torch.amp.GradScaler("cuda")' in text
    assert "GradScaler" not in "\n".join(lines("bf16_autocast", "norm", phase="training"))
    assert "GradScaler" not in "\n".join(lines("fp16_autocast", "norm", phase="training", scaler=False))
    compile(text, "pasted", "exec")


def test_names_that_would_be_patterns_are_escaped_and_quotes_survive() -> None:
    text = "\n".join(lines("fp16_autocast", "odd[0]*", 'a"b'))
    assert '"odd[[]0][*]"' in text
    assert "'a\"b'" in text
    compile(text, "pasted", "exec")


def test_many_names_have_a_line_each() -> None:
    names = [f"encoder.layers.{place}.self_attention" for place in range(9)]
    text = lines("fp16_pure", *names)
    first = text.index("ampbench.keep_fp32(") + 1
    assert text[first : first + 10] == ["    model,", *(f'    "{name}",' for name in names)]
    assert text[first + 10 : first + 12] == ["    cast_back=True,", ")"]
    assert max(map(len, text)) <= 100
    compile("\n".join(text), "pasted", "exec")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "precision", "kept"),
    [
        ("make", "fp16_autocast", ["norm", "odd[0]*"]),
        ("make", "fp16_pure", ["body", "odd[0]*"]),
        ("normed", "bf16_pure", ["norm", "body.head"]),
        ("normed", "bf16_autocast", ["norm"]),
        ("tokens", "bf16_pure", ["body.norm"]),
        ("tokens", "fp16_pure", ["body"]),
        ("named", "bf16_pure", ["body.norm"]),
        ("named", "fp16_autocast", ["body.norm"]),
    ],
)
def test_pasted_into_a_fresh_program_it_errs_what_the_trial_erred(
    make: str, precision: str, kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ampbench.measure.worker import Worker
    from ampbench.records.wire import Request

    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    (source,) = find_sources(f"model.py:{make}")
    short = SHORT_DTYPES[PRECISIONS[precision].storage]
    case: Case = dataclasses.replace(CASE, workload=source.name, family="user", precision=precision, input_dtype=short)
    reply = Worker().serve(Request(kind="trial", source=source, case=case, kept=[kept], threads=1))
    assert reply.trial is not None, reply
    assert reply.trial.output_rel_l2

    (tmp_path / "pasted.py").write_text(code(found(*kept), case))
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "script.py", make], capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == pytest.approx(reply.trial.output_rel_l2, rel=1e-6)

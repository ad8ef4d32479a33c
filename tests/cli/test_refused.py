"""What cannot be meant or done is one line with the right exit code, whatever the verb; nothing is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.odd_networks import ODD
from tests.stored_runs import RUN

Run = Callable[..., Any]
REFUSED = [
    ("shwo", 2, "unknown verb 'shwo': did you mean show?"),
    ("explain", 2, "missing command; see ampbench explain --help"),
    ("show -k", 2, "option '-k' requires an argument"),
    ("show latest --fromat json", 2, "no such option"),
    ("show latest --format jsn", 2, "unknown --format 'jsn': did you mean json?"),
    ("compare", 2, "missing argument 'BASE'; see ampbench compare --help"),
    ("compare 1-before", 2, "missing argument 'CANDIDATE'"),
    ("compare 1-before 3-other", 4, "nothing in common that can be compared: 1-before has 2 cases, such as"),
    ("compare 1-before 4-none", 2, "unknown run '4-none'"),
    ("compare 1-before 2-after --metric tme", 2, "unknown kind 'tme': did you mean time?"),
    ("compare 1-before 2-after -k resnet", 5, "no case of both runs matches -k 'resnet'"),
    ("compare 1-before 2-after -k and", 2, "is not an expression"),
    ("gate 1-before 2-after --policy absent.toml", 2, "there is no policy file absent.toml"),
    ("gate 1-before 2-after --metric tme", 2, "unknown kind 'tme': did you mean time?"),
    ("report 2-aftr", 2, "unknown run '2-aftr': did you mean 2-after"),
    ("report latest --baseline 1-befroe", 2, "unknown run '1-befroe': did you mean 1-before"),
    ("report missing.jsonl", 2, "there is no run file missing.jsonl"),
    ("report --site site -o page.html", 2, "--site and -o contradict each other"),
    ("report --site site 2-aftr", 2, "unknown run '2-aftr'"),
    ("report 3-other --baseline 1-before", 4, "nothing in common that can be compared"),
    ("report --results empty", 2, "there is no results folder empty"),
    ("report --site site --results empty", 2, "there is no results folder empty"),
    ("report -o missing/report", 2, "cannot write missing/report: "),
    ("report -o .", 2, "cannot write .: "),
    ("convert latest --to junitt", 2, "unknown format 'junitt': did you mean junit?"),
    ("convert latest latest --to bencher", 2, "--to bencher takes one run, not 2"),
    ("convert nothing --to junit", 2, "unknown run 'nothing'"),
    ("convert latest", 2, "--to"),
    ("trend --x torch", 2, "unknown --x axis 'torch': did you mean torch_version?"),
    ("trend --metric speed", 2, "unknown metric 'speed'"),
    ("trend --metric gradients", 5, "no case has a number of these metrics"),
    ("trend -k and", 2, "is not an expression"),
    ("trend --results nowhere", 2, "there is no results folder nowhere"),
    ("trend --format csv", 2, "not csv"),
    ("ab --baseline here --gate", 2, "--gate judges a candidate"),
    ("ab mlp --candidate precision=fp8 --baseline precision=fp32", 2, "float8 is emulated: it has errors, and no time"),
    ("ab mlp --candidate precision=fp32 --baseline precision=fp8", 2, "float8 is emulated: it has errors, and no time"),
    ("ab --candidate X=1 mpl", 2, "did you mean mlp"),
    ("ab --candidate X=1 --rounds 33", 2, "33 is not in the range 1<=x<=32"),
    ("ab --candidate X=1 --metric tmie", 2, "time"),
    ("ab --candidate X=1 --policy nothing.toml", 2, "nothing.toml"),
    ("ab --candidate X=1 --budget soon", 2, "soon"),
    ("explain keep-fp32 mlp --max-error -1", 2, "'--max-error': -1.0 is not in the range"),
    ("explain keep-fp32 mlp --max-error nan", 2, "max_error=nan: Expected `float` >= 0.0"),
    ("explain keep-fp32 mlp --max-error inf", 2, "'--max-error': inf is not in the range"),
    ("explain keep-fp32 mlp --max-gradient-error 1e300", 2, "'--max-gradient-error': 1e+300 is not in the range"),
    (
        "explain keep-fp32 mlp --phase inference --max-gradient-error 0.2", 2,
        "--max-gradient-error bounds the gradients of training, and --phase inference has none",
    ),
    (f"explain keep-fp32 --resume {RUN} --max-error 1", 2, "leave --max-error out"),
    ("run resnet19", 2, "unknown workload 'resnet19': did you mean resnet18"),
    ("run mlp --precision bf17", 2, "unknown precision 'bf17'"),
    ("run mlp --set batch_size=0", 2, "batch_size"),
    ("run mlp --set width=nan", 2, "give a finite number"),
    ("run mlp --sweep batch_size=1,,2", 2, "expected NAME=VALUE,VALUE"),
    ("run mlp --sweep batch_size=1 --sweep batch_size=2", 2, "--sweep batch_size is given twice"),
    ("run mlp --timeout 0", 2, "--timeout must be above 0"),
    ("run --timeout soon", 2, "--timeout 'soon' is not a time"),
    ("run --memory-limit big", 2, "--memory-limit 'big' is not a size"),
    ("run --rounds few", 2, "invalid value for '--rounds': 'few' is not a valid whole number; see ampbench run"),
    ("run --rounds 5000", 2, "'--rounds': 5000 is not in the range 1<=x<=1000; see"),
    (f"run --seed {2**63}", 2, "give a whole number below 2**63"),
    ("run mlp --resume latest", 2, "from the run: leave workloads out"),
    ("run --resume latest --rounds 9", 2, "from the run: leave --rounds out"),
    ("run mlp --device xpu", 5, "nothing can run here: xpu is not available"),
    ("run odd.py:unbuildable", 2, "cannot be built: ValueError: no weights here (odd.py, line"),
    ("run odd.py:nte", 2, "has no function 'nte'; did you mean net?"),
    ("run mlp --optimizer torch.optim.LBFGS --preset tiny --no-isolation", 2, "LBFGS needs a closure"),
    ("run huggingface:bert", 2, "No module named 'huggingface'; did you mean transformers:bert?"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "message"), REFUSED, ids=lambda each: str(each)[:60])
def test_what_cannot_be_meant_is_one_line_and_nothing_is_written(
    words: str, code: int, message: str, folder: Path, ampbench: Run
) -> None:
    if words.startswith("trend"):
        pytest.importorskip("asv.step_detect")
    (folder.parent / "odd.py").write_text(ODD)
    before = sorted(folder.parent.rglob("*"))
    said = ampbench(*words.split())
    assert (said.code, said.out, said.err.count("\n")) == (code, "", 1)
    assert said.err.startswith("ampbench: error: ")
    assert message in said.err
    assert sorted(path for path in folder.parent.rglob("*") if "__pycache__" not in path.parts) == before


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ("output_rel_l3 = 1", "unknown limit 'output_rel_l3': did you mean output_rel_l2"),
        ("kl_mean = 'little'", "the limit kl_mean must be a number, not 'little'"),
        ("kl_mean = -1", "kl_mean is a number of 0 or more, not -1"),
    ],
)
def test_a_limit_that_cannot_be_one_is_refused_in_one_line(
    limits: str, message: str, tmp_path: Path, ampbench: Run
) -> None:
    (tmp_path / "ampbench.toml").write_text(f"[limits]\n{limits}\n")
    said = ampbench("show", "latest")
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert f"{tmp_path / 'ampbench.toml'}: {message}" in said.err

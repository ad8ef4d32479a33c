import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ampbench.errors import WorkloadError
from ampbench.records.case import ParameterValue, WorkloadSource
from ampbench.worker.machine import Products
from ampbench.worker.sources import build_workload, describe_workload, imported_elsewhere

GOOD = """
import torch
from ampbench import Workload

def pair(width=4, batch_size=2, name="x"):
    return torch.nn.Linear(width, width), torch.randn(batch_size, width)

def triple():
    return torch.nn.Linear(4, 4), torch.randn(3, 4), lambda output: output.sum()

def whole():
    return Workload(module=torch.nn.Conv2d(3, 4, 3), inputs=torch.randn(2, 3, 8, 8), items_per_step=7, version=3)
"""

WHOLE = """
import torch
from ampbench import Workload
def f(): return Workload(module=torch.nn.ReLU(), inputs=[torch.ones(2)], {})
"""


def source_of(folder: Path, text: str, function: str) -> WorkloadSource:
    path = folder / f"net_{abs(hash(text))}.py"
    path.write_text(text)
    return WorkloadSource(
        name=f"{path.name}:{function}", family="user", module=str(path), function=function, builtin=False
    )


def test_a_pair_a_triple_and_a_workload_are_accepted(tmp_path: Path) -> None:
    pair = describe_workload(source_of(tmp_path, GOOD, "pair"), {"width": 8}, 0)
    assert pair.parameters == {"width": 8, "batch_size": 2, "name": "x"}
    assert (pair.has_loss, pair.items_per_step, pair.channels_last) == (False, 2.0, False)
    assert describe_workload(source_of(tmp_path, GOOD, "triple"), {}, 0).has_loss
    whole = describe_workload(source_of(tmp_path, GOOD, "whole"), {}, 0)
    assert (whole.items_per_step, whole.version, whole.channels_last) == (7.0, 3, True)


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        ("def f(:\n", "f", r"cannot be imported: SyntaxError: .* line 1"),
        (
            "import nosuchpackage\n",
            "f",
            r"cannot be imported: ModuleNotFoundError: No module named 'nosuchpackage' .*line 1",
        ),
        ("def build(): ...\n", "biuld", r"no function 'biuld'; did you mean build?"),
        ("f = 3\n", "f", r"is int, not a function"),
        (
            "def f():\n    raise ValueError('no weights')\n",
            "f",
            r"cannot be built: ValueError: no weights \(net_\S+, line 2\)",
        ),
        ("def f(): return 42\n", "f", r"returned int; expected \(module, inputs\)"),
        ("def f(): return (1, 2, 3, 4)\n", "f", r"returned tuple of 4"),
        ("def f(): return ('net', 2)\n", "f", r"the module is str; expected a torch.nn.Module"),
        ("import torch\ndef f(): return torch.nn.ReLU(), 3\n", "f", r"an input is int; expected a tensor"),
        ("import torch\ndef f(): return torch.nn.ReLU(), []\n", "f", r"list of batches is empty"),
        ("import torch\ndef f(): return torch.nn.ReLU(), torch.ones(2), 3\n", "f", r"the loss is int"),
        (
            "import torch\ndef f(): return torch.nn.Linear(2, 2).double(), torch.ones(2)\n",
            "f",
            r"weight is torch.float64",
        ),
        (
            "import torch\ndef f(): return torch.nn.ReLU(), {'x': torch.ones(2).double()}\n",
            "f",
            r"input is torch.float64",
        ),
        (WHOLE.format("version='1.2'"), "f", r"the version is '1.2'; expected a whole number"),
        (WHOLE.format("items_per_step=float('nan')"), "f", r"items_per_step is nan; expected a number above 0"),
        (WHOLE.format("optimizer=3"), "f", r"the optimizer is int; expected a function or None"),
        (
            WHOLE.format("outputs=[1]"),
            "f",
            r"outputs is list of 1; expected a function of the network's output, or names",
        ),
        (WHOLE.format("cached=(1,)"), "f", r"cached is \(1,\); expected some of its inputs \[0\], in a tuple"),
        (WHOLE.format("cached='keys'"), "f", r"cached is 'keys'; expected some of its inputs \[0\], in a tuple"),
        (WHOLE.format("classes_dim=1.0"), "f", r"classes_dim is 1.0; expected a whole number, or one by output's name"),
        (WHOLE.format("classes_dim={0: 1}"), "f", r"classes_dim is \{0: 1\}; expected a whole number"),
        (WHOLE.format("targets=torch.ones(2)"), "f", r"targets must be a list too"),
        (WHOLE.format("targets=[1, 2]"), "f", r"1 batches of inputs but 2 of targets"),
        ("import torch\ndef f(width): return torch.nn.ReLU(), torch.ones(2)\n", "f", r"'width' needs a default"),
    ],
)
def test_a_broken_contract_is_one_clear_line(tmp_path: Path, text: str, function: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message) as caught:
        describe_workload(source_of(tmp_path, text, function), {}, 0)
    assert "\n" not in str(caught.value)


def test_an_unknown_parameter_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no parameter 'widht'; its parameters: width, batch_size, name"):
        describe_workload(source_of(tmp_path, GOOD, "pair"), {"widht": 3}, 0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("width", "x", "width=x: width is a whole number (its default is 4)"),
        ("width", 2.5, "width=2.5: width is a whole number (its default is 4)"),
        ("width", True, "width=True: width is a whole number (its default is 4)"),
        ("rate", "x", "rate=x: rate is a number (its default is 0.5)"),
        ("deep", 1, "deep=1: deep is true or false (its default is False)"),
    ],
)
def test_a_value_of_another_type_than_the_default_is_refused_before_anything_is_built(
    name: str, value: ParameterValue, said: str, tmp_path: Path
) -> None:
    source = source_of(tmp_path, "def f(width=4, rate=0.5, deep=False, kind='a'): raise AssertionError", "f")
    with pytest.raises(WorkloadError) as caught:
        describe_workload(source, {name: value}, 0)
    assert str(caught.value).endswith(f": {said}")


def test_modules_beside_the_users_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "sibling_module.py").write_text("WIDTH = 6\n")
    text = (
        "import torch\nfrom sibling_module import WIDTH as w\ndef f(): return torch.nn.Linear(w, 1), torch.ones(1, w)\n"
    )
    assert build_workload(source_of(tmp_path, text, "f"), {}, 0).module.in_features == 6


PAIRS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from ampbench import Workload

def batches():
    data = TensorDataset(torch.randn(6, 4), torch.randint(3, (6,)))
    return list(DataLoader(data, 2))

def loader():
    return torch.nn.Linear(4, 3), DataLoader(TensorDataset(torch.randn(6, 4)), 2)

def lists():
    return torch.nn.Linear(4, 3), batches(), torch.nn.functional.cross_entropy

def tuples():
    return torch.nn.Linear(4, 3), [tuple(pair) for pair in batches()], torch.nn.CrossEntropyLoss()

def one():
    return torch.nn.Linear(4, 3), tuple(batches()[0]), lambda output, targets: output.sum()

def two_inputs():
    return torch.nn.Bilinear(4, 4, 3), (torch.ones(2, 4), torch.ones(2, 4)), lambda output: output.sum()

def unclear():
    return torch.nn.Linear(4, 3), batches(), lambda output: output.sum()

def too_many():
    return torch.nn.Linear(4, 3), tuple(batches()[0]), lambda output: output.sum()
"""


@pytest.mark.parametrize(("function", "several"), [("lists", True), ("tuples", True), ("one", False)])
def test_pairs_are_inputs_and_targets_where_the_loss_takes_both(function: str, several: bool, tmp_path: Path) -> None:
    built = build_workload(source_of(tmp_path, PAIRS, function), {}, 0)
    assert isinstance(built.inputs, list) == isinstance(built.targets, list) == several
    inputs, targets = (built.inputs[0], built.targets[0]) if several else (built.inputs, built.targets)
    assert (inputs.shape, targets.shape) == ((2, 4), (2,))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("loader", r"an input is DataLoader: give its batches, list\(loader\);"),
        ("unclear", r"its batches are lists of 2, as a loader .* let the loss take \(output, targets\)"),
        ("too_many", r"a batch has 2 inputs, and Linear.forward takes 1; where the last are targets, let the loss"),
    ],
)
def test_what_a_loader_gives_and_cannot_be_understood_is_refused_with_what_to_do(
    function: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkloadError, match=said):
        build_workload(source_of(tmp_path, PAIRS, function), {}, 0)


def test_a_file_of_a_package_with_relative_imports_is_told_its_name_as_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pkg" / "sub"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    source = source_of(folder, "from . import nothing\ndef f(): ...\n", "f")
    stem = Path(source.module).stem
    with pytest.raises(WorkloadError, match=rf"of a package: name it pkg.sub.{stem}:f, in {tmp_path}$"):
        build_workload(source, {}, 0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkloadError, match=rf"of a package: name it pkg.sub.{stem}:f$"):
        build_workload(source, {}, 0)


@pytest.mark.parametrize("place", ["", "src"])
def test_what_a_repository_holds_and_was_imported_from_elsewhere_is_named(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, installed = tmp_path / "repository", tmp_path / "repository" / ".venv" / "site-packages"
    (repository / ".git").mkdir(parents=True)
    (repository / "benchmarks").mkdir()
    for top in (repository / place, installed):
        (top / "projectile").mkdir(parents=True, exist_ok=True)
        (top / "projectile" / "__init__.py").touch()
    module = ModuleType("projectile")
    monkeypatch.setitem(sys.modules, "projectile", module)
    module.__file__ = str(installed / "projectile" / "__init__.py")
    assert imported_elsewhere(repository / "benchmarks") == (f"projectile ({installed / 'projectile'})",)
    module.__file__ = str(repository / place / "projectile" / "__init__.py")
    assert imported_elsewhere(repository) == ()
    (repository / ".git").rmdir()
    assert imported_elsewhere(repository) == ()


SWITCHING = """
import torch
torch.backends.cudnn.benchmark = True
def f():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    return torch.nn.ReLU(), torch.ones(2)
"""


def test_switches_that_a_users_file_sets_as_it_is_imported_and_called_are_recorded_and_left(tmp_path: Path) -> None:
    before, cudnn = Products.now(), torch.backends.cudnn
    try:
        described = describe_workload(source_of(tmp_path, SWITCHING, "f"), {}, 0)
        assert cudnn.benchmark
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        cudnn.benchmark = False
        before.set()
    assert described.switches == (
        'torch.backends.cuda.matmul.fp32_precision = "tf32"',
        "torch.backends.cudnn.benchmark = True",
    )

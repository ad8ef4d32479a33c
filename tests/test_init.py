import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType

import ampbench
from ampbench import errors
from ampbench.records.kinds import KINDS


def test_the_public_names_are_these():
    assert ampbench.__all__ == [
        "AmpbenchError",
        "Comparison",
        "Findings",
        "NothingComparableError",
        "NothingToRunError",
        "Precision",
        "Result",
        "StoreError",
        "UnknownNameError",
        "UsageError",
        "Workload",
        "WorkloadError",
        "__version__",
        "check",
        "compare",
        "explain",
        "find_nonfinite",
        "keep_fp32",
        "load",
        "measure",
        "open",
        "release_fp32",
        "study",
        "trace_casts",
        "watch",
        "watch_errors",
    ]


def test_every_public_name_is_there_and_listed_and_no_submodule_takes_its_place():
    first = {name: getattr(ampbench, name) for name in ampbench.__all__}
    for name, value in first.items():
        assert value is not None
        assert getattr(ampbench, name) is value
        assert not name.islower() or (find_spec(f"ampbench.{name}") is None) != isinstance(value, ModuleType)
    for group, others in {"explain": set(), "study": {"check"}}.items():
        module, kinds = getattr(ampbench, group), {row.name for row in KINDS.values() if row.group == group}
        named = {name.replace("-", "_") for name in kinds | others}
        assert set(module.__all__) == named, f"ampbench/{group}.py has a function for each row of records/kinds.py"
        assert all(callable(getattr(module, name)) for name in named)
    assert dir(ampbench) == sorted(ampbench.__all__)


def test_every_error_is_public():
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes <= set(ampbench.__all__)
    assert all(name in str(errors.__doc__) for name in classes)


def test_importing_ampbench_imports_neither_torch_nor_pandas():
    code = "import sys, ampbench; sys.exit(' '.join({'torch', 'pandas', 'scipy', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "\n"

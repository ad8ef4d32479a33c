import subprocess
import sys


def test_what_every_timed_step_imports_does_not_hold_the_prober_of_rules_or_the_tracer():
    code = (
        "import sys, ampbench.measure.step\n"
        "print(sorted(name for name in sys.modules if name.startswith('ampbench.explain.')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['ampbench.explain.dtypes', 'ampbench.explain.modules']"

"""asv with torch releases as its x-axis: `make asv-trends`.

asv draws commits. A repository of pins, in .asv/torch-releases, has a commit and a tag for each torch release, whose
requirements pin that release. asv installs them one after the other into one environment (6 GB), runs `NETWORKS` of
benchmarks/asv where results are missing, and publishes the site. Results are kept in results/asv-torch.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINS = ROOT / ".asv" / "torch-releases"
RESULTS = ROOT / "results" / "asv-torch"
RELEASES = {"2.11.0": "0.26.0", "2.12.1": "0.27.1", "2.13.0": "0.28.0", "2.14.1": "0.29.1", "2.15.0": "0.29.2"}
"""The torchvision of each torch release. `===` pins both: `==` would take a 2.13.0+cpu, which no torchvision fits."""
NETWORKS = "^precisions.(Mlp|SimpleConv|CrossEntropyHead|Environment).*"
"""The benchmarks to run, as a regular expression of asv."""
CONFIGURATION = {
    "version": 1,
    "project": "ampbench",
    "repo": ".",
    "branches": ["main"],
    "benchmark_dir": str(ROOT / "benchmarks" / "asv"),
    "results_dir": str(RESULTS),
    "environment_type": "virtualenv",
    "launch_method": "forkserver",
    "install_timeout": 1800,
    "build_command": [],
    "install_command": ["in-dir={build_dir} python -m pip install --requirement requirements.txt"],
    "pythons": [f"{sys.version_info.major}.{sys.version_info.minor}"],
    "matrix": {"env_nobuild": {"AMPBENCH_DEVICE": os.environ.get("AMPBENCH_DEVICE", "cpu")}},
}


def git(*arguments: str, day: int = 1) -> None:
    """Run git in the repository of pins, at a date that orders the releases and means nothing else."""
    date = f"2026-01-{day:02}T00:00:00+0000"
    person = ("-c", "user.name=ampbench", "-c", "user.email=ampbench@localhost")
    environment = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    subprocess.run(["git", *person, *arguments], cwd=PINS, env=environment, check=True)


def make_pins() -> None:
    """Make the repository of pins anew. Equal pins give equal commits, so that stored results keep their places."""
    shutil.rmtree(PINS / ".git", ignore_errors=True)
    PINS.mkdir(parents=True, exist_ok=True)
    git("init", "--quiet", "--initial-branch=main")
    for day, (torch, vision) in enumerate(RELEASES.items(), 1):
        (PINS / "requirements.txt").write_text(f"torch==={torch}\ntorchvision==={vision}\n../../../../..\n")
        git("add", "requirements.txt", day=day)
        git("commit", "--quiet", "--message", f"torch {torch}", day=day)
        git("tag", f"v{torch}", day=day)


def asv(*arguments: str) -> None:
    """Run asv in the repository of pins."""
    subprocess.run([sys.executable, "-m", "asv", *arguments], cwd=PINS, check=True)


def main() -> None:
    """Make the pins, measure releases without results, and publish."""
    make_pins()
    (PINS / "asv.conf.json").write_text(json.dumps(CONFIGURATION, indent=1))
    asv("run", "--skip-existing-successful", "--show-stderr", "--bench", NETWORKS, "ALL", *sys.argv[1:])
    benchmarks = json.loads((RESULTS / "benchmarks.json").read_text())  # all of them: the site would draw empty graphs
    drawn = {name: value for name, value in benchmarks.items() if name == "version" or re.match(NETWORKS, name)}
    (RESULTS / "benchmarks.json").write_text(json.dumps(drawn, indent=1))
    asv("publish")
    print(PINS / "html" / "index.html")


if __name__ == "__main__":
    main()

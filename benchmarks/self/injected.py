"""Are real changes found? `python -m benchmarks.self.injected time|memory,accuracy SESSIONS RESULTS`.

Each session measures the changed networks of `networks.py` anew with `ampbench ab`, and a table says how often each
change was found. A session takes five minutes on 2 cores for times, ten seconds for the rest.
"""

import json
import subprocess
import sys
from pathlib import Path

from ampbench.core.metrics import GATED

NETWORKS = Path(__file__).with_name("networks.py")
CHANGES = {
    "extra_layer": ("seconds_median", "bf16_autocast"),
    "autocast_off": ("seconds_median", "bf16_autocast"),
    "fp32_fallback": ("seconds_median", "bf16_pure"),
    "doubled_buffer": ("peak_memory_bytes", "bf16_autocast"),
    "half_softmax": ("output_rel_l2", "bf16_autocast"),
    "relu_for_gelu": ("reference_drift", "bf16_autocast"),
}
"""The networks: the metric that their change is to be found in, and in which precision."""


BATCHES = "32,64,96,128"
"""Four repetitions of each change of time in a session: starting servers costs as much for one as for many."""


def main(only: str, sessions: int, results: str) -> None:
    """Print how often each change of the kinds `only` was found, and how large."""
    names = [name for name, (metric, _) in CHANGES.items() if GATED[metric].kind in only.split(",")]
    sizes: dict[str, list[float]] = {name: [] for name in names}
    counts = dict.fromkeys(names, 0)
    for seed in range(sessions):
        for finding in measure(seed, only, names, results):
            name = finding["workload"].partition(":")[2]
            if finding["metric"] == CHANGES[name][0] and finding["status"] != "incomparable":
                counts[name] += 1
                print(seed, name, finding["status"], finding["reason"], file=sys.stderr, flush=True)
                if finding["status"] == "regressed":
                    sizes[name].append(finding["change"])
    print("| change | found in | size (median) | found |\n|---|---|---|---|")
    for name, found in sizes.items():
        metric, precision = CHANGES[name]
        seen = sorted(found) or [float("nan")]
        size = f"{seen[len(seen) // 2]:+.1%} ({seen[0]:+.1%} to {seen[-1]:+.1%})"
        print(f"| {name}, {precision} | {metric} | {size} | {len(found)} of {counts[name]} |")


def measure(seed: int, only: str, names: list[str], results: str) -> list[dict]:
    """Return the findings of one session over the networks called `names`; its runs are kept in `results`."""
    cases = " or ".join(f"({name} and {CHANGES[name][1]})" for name in names)
    command = [
        sys.executable, "-m", "ampbench", "ab", *(f"{NETWORKS}:{name}" for name in names),
        "--baseline", "changed=0", "--candidate", "changed=1", "-k", cases, "--phase", "inference",
        "--threads", "1", "--seed", str(seed), "--metric", only, "--results", results, "--json",
        *(["--sweep", f"batch={BATCHES}", "--min-run-time", "0.2"] if only == "time" else []),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)["findings"]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

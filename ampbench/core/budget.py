"""Limits on the error of a precision, as settings files and verdicts use them."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ampbench.errors import UnknownNameError, UsageError


@dataclass(frozen=True, kw_only=True)  # no slots: the class' attributes are the defaults of a search
class Budget:
    """Limits on the error of a precision; each limit is named like the column that it bounds.

    Not negotiable: no non-finite output; in training no non-finite parameter, no skipped step once GradScaler's scale
    has settled, no loss of updates (the constants below). Single parameters with 1% of the gradients' norm get
    `OF_A_TENSOR` times the limit of all. `ampbench.judge.verdict.LOOKS` applies all of these.

    The sources of the defaults; the others are conventions (docs/statistics.md):

    * `output_rel_l2`, of outputs without a unit of their own (no classifier's, rows without a spread), in inference:
      near `torch.testing.assert_close` for bf16 (1.6e-2). Rounding a reference output to bf16 makes an error of 1.6e-3
      on real networks, healthy autocast three to ten times that.
    * `argmax_agreement`: MLPerf Inference demands 99% of the fp32 accuracy (Reddi et al., 2020); 99% agreement moves
      accuracy by one point at most. A shortfall that chance explains is allowed (`verdict.is_chance`).
    * `grad_rel_l2`: a tenth adds 0.5% to the noise of a minibatch gradient at the critical batch size (McCandlish et
      al., "An Empirical Model of Large-Batch Training", 2018).
    * `grad_flushed_share`, beyond what fp32 flushes: harm is reported at 5% (Micikevicius et al., "Mixed Precision
      Training", 2018, section 3.1).
    * `kl_mean`: then no probability differs by more than 7% on average (Pinsker). LLaMA 3 8B is 5.5e-3 from itself in
      six-bit and 1.1e-2 in five-bit weights (llama.cpp, examples/perplexity).
    * `logprob_gap_p99`, of targets: PPO clips ratios of probabilities beyond 1 ± 0.2 (Schulman et al., 2017), so at
      most 1% of tokens count less than they should. `logprob_gap_mean`: gaps with that quantile have a mean near a
      quarter of it if they are normal.

    Raises `UsageError` for a negative limit, a limit that is no number, or an agreement above 1.
    """

    output_rel_l2: float = 2e-2
    argmax_agreement: float = 0.99
    grad_rel_l2: float = 1e-1
    grad_flushed_share: float = 1e-2
    kl_mean: float = 1e-2
    kl_p99: float = 1e-1
    logprob_gap_mean: float = 5e-2
    logprob_gap_p99: float = 2e-1
    loss_rel_error: float = 5e-2

    def __post_init__(self) -> None:
        for name in LIMITS:
            value, most = getattr(self, name), 1.0 if name in _SHARES else math.inf
            if not 0 <= value <= most:
                kind = "a share between 0 and 1" if name in _SHARES else "a number of 0 or more"
                raise UsageError(f"{name} is {kind}, not {value:g}")


LIMITS = tuple(limit.name for limit in fields(Budget))
"""The names of the limits of a budget."""
_SHARES = ("argmax_agreement", "grad_flushed_share")
LEAST_KEPT = 0.98
"""The least share of an update that must arrive: a convention. A loss repeats in every step, like a learning rate
smaller by this share; comparisons call 2% unchanged."""
LEAST_KEPT_OF_A_TENSOR = 0.9
"""The same for one tensor that carries at least 1% of the update's square."""
MOST_SWALLOWED = 0.02
"""The largest share of an update's square in weights that never move, also if others round up: the same 2%."""
MOST_OF_NOISE = 1 / 3
"""The largest error of a gradient relative to the noise of a batch, where it exceeds its limit. Independent from batch
to batch, it adds a ninth to the variance, as a batch smaller by a tenth does; a part that batches have in common
changes as weights move."""
LOSS_IN_NATS = 0.01
"""An error of a classifier's loss below this, in nats, is no error: the same as for `kl_mean`."""
OF_A_TENSOR = 5
"""The limit for the gradient of one tensor with 1% of the norm, relative to the limit for all: as 10% to 2%."""
MOST_OVER_SPREAD = 0.1
"""The largest error of an output in inference, classifiers apart, relative to the spread between its rows: a
convention. At a tenth, 1% of the variance between rows is rounding, as 1% of a classifier's decisions may change. In
the built-in networks bf16 reaches at most 0.05."""
MOST_OVER_SPREAD_TRAINING = 0.2
"""The same in training, where rounding of an output adds to the loss as noise of targets does: 4% of their variance. No
other error of an output refuses a training: it acts through loss and gradient, which have limits."""
MOST_UNSCALING = 1.0
"""The largest divisor of a loss: a scale below 1 means that gradients overflow fp16 without it, and they may grow
further. A convention."""
MOST_OF_RANGE = 1.0
"""The largest value, relative to the largest number of its dtype."""
MOST_OF_LOSS = 0.25
"""The largest error of a loss's gradient with respect to outputs: bf16 errs by 0.4% an operation, so that a quarter is
another function, not rounding. A convention."""
MOST_STALL = 0.1
"""The largest relative distance at which running statistics may stop from batch statistics: a convention. Two
BatchNorms, 400 steps of SGD, statistics in bf16, held-out loss relative to fp32 statistics: with inputs one standard
deviation from zero 1.00 at 0.02 (momentum 0.1), 1.02 at 0.1, 1.25 at 0.2; five from zero 1.00, 1.8 and 2.5; around zero
1.00 up to 0.4."""

FILE_NAME, TABLE = "ampbench.toml", "limits"


def find_limits(start: Path) -> tuple[Path, dict[str, float]] | None:
    """Return the nearest settings file from `start` up to the root of its repository, and its limits; None without one.

    Limits stand in `[tool.ampbench.limits]` of pyproject.toml, or in `[limits]` of ampbench.toml, which comes before it
    in one folder; a pyproject.toml without `[tool.ampbench]` does not count. Outside a repository only `start` is
    searched. Raises `UsageError` for a file that is not TOML, an unknown key or limit, and a value of another type.
    """
    upwards = [start.resolve(), *start.resolve().parents]
    root = next((depth for depth, folder in enumerate(upwards) if (folder / ".git").exists()), 0)
    for folder in upwards[: root + 1]:
        ampbench_file, project = folder / FILE_NAME, folder / "pyproject.toml"
        if ampbench_file.is_file():
            return ampbench_file, _limits(ampbench_file, read_toml(ampbench_file))
        if project.is_file():
            table = _table(read_toml(project).get("tool", {}), project, "tool").get("ampbench")
            if table is not None:
                return project, _limits(project, _table(table, project, "tool.ampbench"))
    return None


def _limits(file: Path, table: Mapping[str, Any]) -> dict[str, float]:
    for key in table:
        if key != TABLE:
            raise UsageError(f"{file}: {UnknownNameError('table', key, [TABLE])}")
    limits: dict[str, float] = {}
    for name, value in _table(table.get(TABLE, {}), file, TABLE).items():
        if name not in LIMITS:
            raise UsageError(f"{file}: {UnknownNameError('limit', name, LIMITS)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{file}: the limit {name} must be a number, not {value!r}")
        limits[name] = float(value)
    return limits


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file; `UsageError` with its name and line if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # invalid TOML or UTF-8, or an integer with too many digits for Python
        raise UsageError(f"{path}: not valid TOML: {str(error).partition(';')[0]}") from error
    except RecursionError:
        raise UsageError(f"{path}: its brackets or tables are nested too deep to be read") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _table(value: Any, path: Path, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {name} must be a table ([{name}]), not {value!r}")
    return value

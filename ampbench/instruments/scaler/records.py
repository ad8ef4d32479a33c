"""What a worker is asked for in a study of loss scaling."""

from dataclasses import dataclass

from ampbench.records.run import ScalerSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingAsked:
    """To train a case for `steps` steps with a scaler `setting` (None: in fp32)."""

    setting: ScalerSetting | None
    steps: int

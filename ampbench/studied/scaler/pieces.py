"""Which trainings a study of loss scaling is made of, and which of them a stored run lacks."""

from ampbench.precisions import BASELINE
from ampbench.records.studies import ScalerSetting
from ampbench.store import StoredRun


def setting_name(setting: ScalerSetting | None) -> str:
    """Return what a training with a setting is called; None: in fp32."""
    return setting.name if setting else BASELINE


def trained(stored: StoredRun | None) -> set[tuple[str, str]]:
    """Return which trainings are in a run, by the ids of cases and the names of settings."""
    found = stored.scaler.items() if stored else ()
    return {(case_id, run.setting.name) for case_id, runs in found for run in runs}


def unfinished(stored: StoredRun) -> list[tuple[str, str]]:
    """Return which trainings a run lacks, by the ids of cases and the names of settings, in the order of the run.

    Cases that failed or were skipped lack none, nor does a run that does not say what it was asked for.
    """
    done, asked = trained(stored), stored.header.asked
    if asked is None:
        return []
    return [
        (case_id, name)
        for case_id in stored.cases
        if case_id not in stored.given_up
        for name in map(setting_name, (None, *asked.settings))
        if (case_id, name) not in done
    ]

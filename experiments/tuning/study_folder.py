"""Whose trials a folder holds: two studies in one would take each other's runs for their own."""

import json
from pathlib import Path
from typing import Any

from virl_tf.persistence.configuration import differences
from virl_tf.persistence.files import write_text
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError, shortened

import optuna
from optuna.trial import TrialState

from experiments.tuning.specification import StudySpecification, without_password
from experiments.tuning.study import ELSEWHERE
from experiments.tuning.trials import count

FILE = "study.json"


def check_folder(out: Path, spec: StudySpecification, url: str) -> None:
    """Raises InputError if the folder is another study's, of other settings or storage, or none."""
    if not (out / FILE).is_file():
        check_no_sweep(out)
        return
    try:
        found = json.loads((out / FILE).read_text())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{out / FILE} is damaged ({error}). {ELSEWHERE}") from error
    other = differences(found, _identity(out, spec, url))
    if other:
        text = f"{out} holds the trials of another study ({shortened(other)})"
        raise InputError(f"{text}. {ELSEWHERE} If it was moved, delete {out / FILE}.")


def check_no_sweep(out: Path) -> None:
    """Raises InputError for a file, and for the folder of a run, a sweep or ablations: with other
    records in it a sweep's figures would be of both.
    """
    RunFolder(out).check_no_file()
    if (out / "config.yaml").is_file():
        raise InputError(f"{out} holds a run or a sweep (config.yaml). Give another --out.")


def claim_folder(out: Path, spec: StudySpecification, url: str, study: optuna.Study) -> None:
    """Write down whose the folder is, if nobody has.

    Raises:
        InputError: there are trials in it, though none of the study's has begun.
    """
    begun = count(study) > count(study, TrialState.WAITING)
    if not begun and any((out / "trials").glob("[0-9]*")):
        raise InputError(f"{out / 'trials'} holds the trials of another study. {ELSEWHERE}")
    if not (out / FILE).is_file():
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / FILE, json.dumps(_identity(out, spec, url), indent=1))


def _identity(out: Path, spec: StudySpecification, url: str) -> dict[str, Any]:
    return {"study": spec.name, "storage": _place(out, url), "settings": spec.to_attributes()}


def _place(out: Path, url: str) -> str:
    """Of a database: without a password; a file in the folder by its name, as both may be moved."""
    if not url.startswith("sqlite:///") or url.startswith("sqlite:///file:"):
        return without_password(url.split("?")[0])
    file = Path(url.removeprefix("sqlite:///")).resolve()
    return file.name if file.parent == out.resolve() else str(file)

"""The trials of a study: which ended, failed or are lost, which is the best, and how those whose
worker is gone are enqueued again.
"""

import time
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import optuna
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from experiments.tuning import storage

ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
BETWEEN_SECONDS = 3.0  # that a worker may take from failing a lost trial to its enqueueing


def trials_of(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Its trials in these states, or all; not copied, so not to be changed."""
    return study.get_trials(deepcopy=False, states=states or None)


def count(study: optuna.Study, *states: TrialState) -> int:
    """The number of trials in these states, or of all."""
    return len(trials_of(study, *states))


def is_lost(trial: FrozenTrial) -> bool:
    """Whether so many workers died of a trial that it is not tried again."""
    history = RetryHeartbeatStaleTrialCallback.retry_history(trial)
    return trial.user_attrs.get("reason") == storage.VANISHED and len(history) >= storage.RETRIES


def has_failed(trial: FrozenTrial) -> bool:
    """Whether a trial failed for good: it was neither tried again nor not needed."""
    failed = trial.state == TrialState.FAIL
    return failed and ("traceback" in trial.user_attrs or is_lost(trial))


def stop(study: optuna.Study, command: str) -> None:
    """Have a command's workers stop, wherever they are, and put their trials back in the queue."""
    study.set_user_attr("stopped", [*study.user_attrs.get("stopped", []), command])
    running = trials_of(study, TrialState.RUNNING)
    release(study, [t.number for t in running if t.user_attrs.get("worker") == [command, t.number]])


def release(study: optuna.Study, numbers: Collection[int]) -> None:
    """Fail trials whose workers were stopped; enqueued again, they go on from their checkpoint."""
    retry = storage.retry_callback(None)
    for trial in study.get_trials(deepcopy=True, states=(TrialState.RUNNING,)):
        if trial.number in numbers:
            try:
                study.tell(trial.number, state=TrialState.FAIL)
            except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
                continue  # it ended, or another gave it up
            # Only workers that die count against a trial.
            trial.system_attrs.pop("retry_history", None)
            retry(study, trial)


def release_silent(study: optuna.Study) -> None:
    """Give up trials whose worker died before the first heartbeat: Optuna never does."""
    limit = datetime.now() - timedelta(seconds=storage.GRACE_SECONDS)
    running = trials_of(study, TrialState.RUNNING)
    silent = [t for t in running if t.user_attrs.get("worker", [None, None])[1] != t.number]
    begun = [(t.number, t.datetime_start) for t in silent]
    release(study, [number for number, start in begun if start is not None and start < limit])


def enqueue_forgotten(study: optuna.Study) -> None:
    """Enqueue lost trials whose finder failed them, and died before it enqueued them."""
    for trial in _forgotten(study):
        age = datetime.now() - (trial.datetime_complete or datetime.min)
        # Optuna writes local times: a finder in another time zone seems to be of the future.
        left = BETWEEN_SECONDS - age.total_seconds()
        time.sleep(min(BETWEEN_SECONDS, max(0.0, left)))
        if trial.number in {forgotten.number for forgotten in _forgotten(study)}:
            storage.retry_callback(storage.RETRIES)(study, trial)


def _forgotten(study: optuna.Study) -> list[FrozenTrial]:
    trials = study.get_trials(deepcopy=True)
    histories = [RetryHeartbeatStaleTrialCallback.retry_history(trial) for trial in trials]
    retried = {number for history in histories for number in history}
    lost = [trial for trial in trials if trial.user_attrs.get("reason") == storage.VANISHED]
    return [t for t in lost if t.state == TrialState.FAIL and t.number not in retried]


def best_trial(study: optuna.Study) -> FrozenTrial | None:
    """The complete trial with the lowest value, or None."""
    return best_of(trials_of(study))


def best_of(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The same of these."""
    ended = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    complete = [trial for trial in ended if trial.value is not None]
    return min(complete, key=lambda trial: trial.value, default=None)  # type: ignore[arg-type, return-value]


def published_trial(study: optuna.Study) -> FrozenTrial | None:
    """The latest trial with the published values that ended (or None)."""
    ended = reversed(trials_of(study, *ENDED))
    return next((trial for trial in ended if trial.user_attrs.get("published")), None)

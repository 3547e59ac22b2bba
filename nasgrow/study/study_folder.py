"""Open the folder of a study: create it, resume it, or refuse it if the study file or the data changed."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from nasgrow.errors import UserError
from nasgrow.strict import with_prefix
from nasgrow.study.artifacts import sweep_artifacts
from nasgrow.study.config import STUDY, differences, dump_study, load_study
from nasgrow.study.folders import check_folder
from nasgrow.study.lock import Lease, State, doing, driving
from nasgrow.study.storage import is_server, open_storage, quiet, reach, storage_url
from nasgrow.study.store import Attach, StudyStore
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TRIAL_KINDS, TRIALS_FOLDER, Kind, TrialRecord, read_trials
from nasgrow.training.atomic_files import sweep, to_json, write_text
from nasgrow.training.run import Run

ORIGIN = "origin.json"
"""The file in a study's folder that holds the version of the folder's format, the data's fingerprint, and a
random id, by which the Optuna study refers to the folder."""

STUDY_FORMAT = 4
"""The version of the folder's format, raised by every change after which older studies cannot be resumed."""

TRIED = 5
"""How many points are drawn to test a user's function."""

FIRST_STUDIES: tuple[Kind, ...] = "baseline", "search", "fixed"
"""The Optuna studies that are created on opening, so that the dashboard can show notes in them."""

FOLDER_ATTRIBUTE = "folder"
"""The attribute of the Optuna study that names the study's folder."""


@dataclass(frozen=True)
class OpenStudy:
    """A study that this process drives.

    Attributes:
        study: The study.
        folder: Its folder.
        fingerprint: The fingerprint of its data.
        trials: Its trials by kind and number.
        store: Writes the trials.
    """

    study: ResolvedStudy
    folder: Path
    fingerprint: str
    trials: dict[Kind, dict[int, TrialRecord]]
    store: StudyStore


def check(study: ResolvedStudy, folder: Path) -> None:
    """Check everything that a study needs, except its data, which may take long to prepare.

    Nothing is created. A user's function is called a few times.

    Raises:
        UserError: The folder holds something else, or a study of an incompatible version; a user's
            function fails; or a database server cannot be reached.
    """
    check_folder(folder, STUDY, "give the study another name", ["*"])
    _check_origin(folder)
    with_prefix(f"{study.config.name}: space", partial(_try_points, study))
    reach(storage_url(study.config, folder))


@contextmanager
def opened(
    study: ResolvedStudy, folder: Path, fingerprint: str, attach: Attach, warn: Callable[[str], None]
) -> Iterator[OpenStudy]:
    """Open a study for its driver while the body runs; create its folder and Optuna studies if they are new.

    Trials that Optuna's storage has lost are written there again. If opening fails, a new folder is
    removed.

    Args:
        study: The study.
        folder: Its folder.
        fingerprint: The fingerprint of its data.
        attach: Attaches files to trials that have ended.
        warn: Called with each warning.

    Raises:
        UserError: Another driver is running it; it began with another study file or other data;
            another program has changed its trials in the storage; the folder or the storage cannot
            be used; or :func:`check` fails.
    """
    check(study, folder)
    new, above = not folder.exists(), folder.parent.exists()
    is_open = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with driving(folder):
            for written in (folder, folder / TRIALS_FOLDER):
                sweep(written)
            _begin(study, folder, fingerprint)
            storage = open_storage(storage_url(study.config, folder))
            trials = trials_by_kind(read_trials(folder))
            records = [trial for kind in trials.values() for trial in kind.values()]
            store = StudyStore(study, folder, storage, attach, warn, records)
            lease = _claim(study, folder, storage, store)
            restored = _check_storage(study, trials, store, warn)
            for kind in FIRST_STUDIES:
                store.optuna_study(kind)
            if restored:
                kinds = [kind for kind in TRIAL_KINDS if store.has(kind)]
                sweep_artifacts(folder, map(store.optuna_study, kinds), storage)
            if not (folder / STUDY).exists():
                write_text(folder / STUDY, dump_study(study.config))
            is_open = True
            try:
                yield OpenStudy(study, folder, fingerprint, trials, store)
            finally:
                if lease is not None:
                    with suppress(SQLAlchemyError, StorageInternalError):  # the lease expires anyway
                        lease.release()
    except OSError as error:
        if is_open:  # the error may be about any other file
            raise
        raise UserError(f"{folder}: cannot be used: {(error.strerror or str(error)).lower()}") from None
    finally:
        if new and not (folder / STUDY).exists():
            shutil.rmtree(folder, ignore_errors=True)
            if not above:
                with suppress(OSError):  # another process may have written there
                    folder.parent.rmdir()


@dataclass(frozen=True)
class KnownStudy:
    """The state of a study as its folder records it.

    Attributes:
        trials: Its trials by kind and number.
        state: ``running`` if a driver is at work, ``stopped`` if it was stopped or died, ``ended`` if nothing
            is left to do.
        running: The trials that are being trained, as plain data that the driver wrote.
        planned: How many baseline trials there will be in all, at least (``baselines``), and how
            many confirmation trials (``confirming``), as the driver wrote it; None where that is
            not known, and if no driver is at work.
    """

    trials: dict[Kind, dict[int, TrialRecord]]
    state: State
    running: list[dict[str, Any]]
    planned: Mapping[str, int | None]

    @property
    def searched(self) -> bool:
        """Whether nothing of the search is left to do, or a confirmation is running.

        A confirmation may follow a search that was stopped early. That search can go on afterwards, and
        then this is False again.
        """
        return self.state == "ended" or self.planned["confirming"] is not None


def read_study(folder: Path) -> KnownStudy:
    """Read the study in a folder; write nothing, and do not open its storage.

    Raises:
        UserError: There is no study, an incompatible version of nasgrow began it, or a record is
            damaged.
    """
    if _check_origin(folder) is None:
        raise UserError(f"{folder}: no such study yet; start it with nasgrow search")
    shown = doing(folder)
    trials = trials_by_kind(read_trials(folder))
    return KnownStudy(trials, shown["state"], shown["running"], shown["planned"])


def trials_by_kind(records: list[TrialRecord]) -> dict[Kind, dict[int, TrialRecord]]:
    """Return trials by kind and number; every kind has an entry, which may be empty."""
    found: dict[Kind, dict[int, TrialRecord]] = {kind: {} for kind in TRIAL_KINDS}
    for record in records:
        found[record.kind][record.number] = record
    return found


def _begin(study: ResolvedStudy, folder: Path, fingerprint: str) -> None:
    """Write the origin of a new study, or check an older one.

    Raises:
        UserError: The study began with another study file or other data.
    """
    name = study.config.name
    origin = _check_origin(folder)
    if origin is None:
        own = {"format": STUDY_FORMAT, "data": fingerprint, "id": secrets.token_hex(8)}
        write_text(folder / ORIGIN, to_json(own) + "\n")
        return
    if origin["data"] != fingerprint:
        raise UserError(
            f"{name}: its data has changed since it began (fingerprint {origin['data']} became "
            f"{fingerprint}): give the study another name"
        )
    check_unchanged(study, folder)


def check_unchanged(study: ResolvedStudy, folder: Path) -> None:
    """Raise ``UserError`` if the study in ``folder`` began with settings that give other results."""
    changed = differences(load_study(folder), study.config) if (folder / STUDY).exists() else []
    if changed:
        raise UserError(
            f"{study.config.name}: a study of this name was begun with other settings "
            f"({'; '.join(changed)}): give this one another name"
        )


def _check_origin(folder: Path) -> dict[str, Any] | None:
    """Read the origin of a study's folder; None if the folder is new.

    Raises:
        UserError: The file is damaged, or an incompatible version of nasgrow wrote it.
    """
    try:
        origin: dict[str, Any] = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        if origin["format"] == STUDY_FORMAT:
            return origin
    except FileNotFoundError:
        if not (folder / STUDY).exists():
            return None
    except OSError as error:
        raise UserError(f"{folder}: cannot be used: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise UserError(f"{folder / ORIGIN}: is damaged; give the study another name") from None
    raise UserError(
        f"{folder}: was begun by another version of nasgrow, whose studies this one cannot resume: give the "
        "study another name"
    )


def _try_points(study: ResolvedStudy) -> None:
    """Draw a few points of a space that a user's function defines, so that its errors show early.

    Raises:
        UserError: The function fails, or returns an invalid schedule.
    """
    if study.space.declared:
        return
    with quiet():
        trials = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for _ in range(TRIED):
            point = study.space.sample(trials.ask())
            if study.budget:
                config = study.run(point.schedule, point.training, study.config.seeds[0])
                Run.resolve(config, vocab=study.variant.vocab, fingerprint="")


def _claim(study: ResolvedStudy, folder: Path, storage: RDBStorage, store: StudyStore) -> Lease | None:
    """Tie the Optuna study to this folder if the storage is outside the folder, and take its lease.

    Returns:
        The lease; None unless the storage is a database server.

    Raises:
        UserError: The Optuna study belongs to another folder, or another driver holds the lease.
    """
    if str(folder.absolute()) in str(storage.engine.url.database or ""):
        return None
    search = store.optuna_study("search")
    here = {
        "id": (_check_origin(folder) or {}).get("id"),
        "at": f"{socket.gethostname()}:{folder.absolute()}",
    }
    known = search.user_attrs.get(FOLDER_ATTRIBUTE)
    if known is None and search.get_trials(deepcopy=False):
        raise UserError(f"{study.config.name}: the storage has another Optuna study of this name")
    if known is None:
        search.set_user_attr(FOLDER_ATTRIBUTE, here)
    elif not isinstance(known, dict) or known.get("id") != here["id"]:
        at = known.get("at") if isinstance(known, dict) else known
        raise UserError(
            f"{folder}: the study of this name in the storage is kept in {str(at)[:200]}: run it there, "
            "or give this one another name"
        )
    if not is_server(str(storage.engine.url)):
        return None
    store.lease = Lease(search)
    store.lease.take()
    return store.lease


def _check_storage(
    study: ResolvedStudy,
    trials: dict[Kind, dict[int, TrialRecord]],
    store: StudyStore,
    warn: Callable[[str], None],
) -> bool:
    """Make Optuna's storage agree with the trial records; only nasgrow may write a study.

    Missing trials are written again. Trials whose record says that they ended are ended. Unfinished
    trials without a record are marked as failed.

    Returns:
        Whether trials were missing.

    Raises:
        UserError: Another program has removed or reset trials, or the trials cannot be read.
    """
    restored = False
    for kind, known in trials.items():
        if not known and not store.has(kind):
            continue
        shown = store.shown(kind)
        missing = sorted(known.keys() - shown.keys())
        reset = [number for number in known if shown.get(number) == TrialState.WAITING]
        # Optuna only appends numbers, so a missing trial before the last one was removed by another program.
        if reset or (missing and max(shown, default=-1) > missing[0]):
            raise store.changed(kind)
        if missing:
            warn(
                f"{study.config.name}: its storage lacks {len(missing)} {kind} "
                f"trial{'s' if len(missing) > 1 else ''}: written there again from the records"
            )
        for number in missing:
            store.restore(known[number])
            restored = True
        unknown = shown.keys() - known.keys()
        store.fail(kind, [number for number in unknown if not shown[number].is_finished()])
        for number, trial in known.items():
            if trial.is_ended and number in shown and not shown[number].is_finished():
                store.record_end(trial)  # the driver died after it wrote the record, before it told Optuna
        begun = TrialState.RUNNING, TrialState.FAIL  # started by a driver that died before it recorded them
        foreign = [number for number in unknown if shown[number] not in begun]
        if foreign:
            warn(
                f"{study.config.name}: {kind} {min(foreign)} in its storage is not nasgrow's, and is ignored"
            )
    return restored

"""Write runs for MLflow: to a SQLite file, or to the store that ``MLFLOW_TRACKING_URI`` names."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nasgrow.errors import UserError
from nasgrow.redact import redact
from nasgrow.trackers import RunWriter, TaggedValue

URI = "MLFLOW_TRACKING_URI"
"""The environment variable that names MLflow's store."""

METRICS_AT_ONCE = 1000
"""The most metrics in one request to MLflow."""


class StoredRun:
    """Writes one run. Its experiment has the name of the parent of the run's folder.

    Raises:
        UserError: The experiment has a run of this name already, or the store cannot be reached.
    """

    def __init__(self, to: Path, name: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # else it logs every change of its tables
        from mlflow import MlflowClient

        out = to.parent
        if not os.environ.get(URI):
            out.mkdir(parents=True, exist_ok=True)
        with _errors_in_a_line():
            self._client = MlflowClient(tracking_uri=_uri(out))
            experiment = self._client.get_experiment_by_name(out.name)
            if experiment is None:
                identity = self._client.create_experiment(out.name)
            else:
                identity = experiment.experiment_id
            if self._client.search_runs([identity], f'attributes.run_name = "{name}"', max_results=1):
                raise UserError(
                    f"{out.name}: this experiment of MLflow has a run {name} already: delete it there, "
                    "or choose another experiment by --out mlflow/NAME"
                )
            self._run = self._client.create_run(identity, run_name=name).info.run_id

    def write(self, scalars: list[TaggedValue]) -> None:
        """Log scalars in large batches.

        Raises:
            UserError: The store cannot be reached, or refuses them.
        """
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(tag, value, now, step) for tag, value, step in scalars]
        with _errors_in_a_line():
            for start in range(0, len(metrics), METRICS_AT_ONCE):
                self._client.log_batch(self._run, metrics[start : start + METRICS_AT_ONCE])

    def close(self) -> None:
        """Mark the run as finished."""
        with _errors_in_a_line():
            self._client.set_terminated(self._run)


def open_run(to: Path, name: str) -> RunWriter:
    """Begin a run; runs whose folders share a parent share an experiment."""
    return StoredRun(to, name)


def next_step(out: Path) -> str:
    """Return the command that shows the runs, or where to see them if :data:`URI` is set."""
    if os.environ.get(URI):
        return f"see the experiment {out.name} of {redact(_uri(out))}"
    return f"mlflow ui --backend-store-uri {_uri(out)}"


def _uri(out: Path) -> str:
    return os.environ.get(URI) or f"sqlite:///{out / 'mlflow.db'}"


@contextmanager
def _errors_in_a_line() -> Iterator[None]:
    """Raise MLflow's errors as ``UserError``: the store cannot be reached, or refuses a run."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise UserError(f"MLflow: {redact(str(error)).splitlines()[0]}") from None

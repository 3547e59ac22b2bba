"""The notebook of ``examples/`` runs from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "study.ipynb"


@pytest.mark.filterwarnings("ignore")  # of the kernel's sockets, which it leaves to the collector
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code"), (
        "it is committed executed"
    )
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "runs" / "notebook" / "study.yaml").is_file()

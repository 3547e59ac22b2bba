"""The loop on fake CUDA tensors: no tensor is on a wrong device, no step waits, and kernels are counted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
BUDGETS = 1e7, 1.6e7
FAULTS = None, "value", "copy", "blocking copy", "device"
TRAINING = {
    "optimizer": "muon",  # and AdamW for the rest
    "micro_tokens": 32,
    "operator": {"kind": "masked", "opening": 0.3},
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each case did; all of them in one process."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler, and there is none here")
    folder, include = tmp_path_factory.mktemp("fake"), Path(torch.__path__[0])
    library = folder / "fake_cuda.so"
    command = [compiler, "-std=c++20", "-shared", "-fPIC", f"-I{include}/include", f"{HERE}/fake_cuda.cpp"]
    command += [f"-L{include}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{include}/lib", "-o", str(library)]
    subprocess.run(command, check=True)
    cases: dict[str, dict[str, Any]] = {
        f"budget {budget:g}": {"training": TRAINING, "budget": budget, "events": [0], "fault": None}
        for budget in BUDGETS
    }
    cases["adamw"] = {"training": {}, "budget": 1.2e7, "events": [1], "fault": None}
    for fault in FAULTS:
        cases[f"fault {fault}"] = {"training": {}, "budget": 2.5e6, "events": [], "fault": fault}
    ran = subprocess.run(
        [
            sys.executable,
            str(HERE / "fake_cuda.py"),
            str(library),
            str(folder),
            json.dumps([*cases.values()]),
        ],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return dict(zip(cases, json.loads(ran.stdout), strict=True))


def test_runs_with_events_end_and_wait_as_often_however_many_steps_there_are(
    outcomes: dict[str, dict[str, Any]],
) -> None:
    short, long = (outcomes[f"budget {budget:g}"] for budget in BUDGETS)
    assert short["status"] == long["status"] == "finished"
    assert long["steps"] > 1.3 * short["steps"]
    assert short["records"] == long["records"]
    assert short["records"]["event"] == 1
    assert short["waits"] == long["waits"]


def test_without_events_only_records_wait(outcomes: dict[str, dict[str, Any]]) -> None:
    sound = outcomes["fault None"]
    records = sound["records"]
    asked = 2 * records["train"] + records["evaluation"] + 2 * records["final"]
    assert sound["waits"]["_local_scalar_dense"] == asked
    assert "copy to the cpu" not in sound["waits"]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("value", "_local_scalar_dense"), ("copy", "copy to the cpu"), ("blocking copy", "copy to the cuda")],
)
def test_a_wait_at_every_step_would_be_noticed(
    outcomes: dict[str, dict[str, Any]], fault: str, kind: str
) -> None:
    sound, faulty = outcomes["fault None"], outcomes[f"fault {fault}"]
    assert faulty["waits"][kind] == sound["waits"].get(kind, 0) + sound["steps"]


def test_a_wrong_device_would_be_noticed(outcomes: dict[str, dict[str, Any]]) -> None:
    assert "found at least two devices, cuda:0 and cpu" in outcomes["fault device"]["error"]


def test_kernels_of_a_step_do_not_depend_on_the_number_of_tensors(
    outcomes: dict[str, dict[str, Any]],
) -> None:
    """Seven steps of a layer, three of two layers and a wider MLP; or two and two with a wider model.

    The first step of a stage makes moments. Gradients are counted as without a compiler, which fuses them.
    """
    adamw, muon = outcomes["adamw"], outcomes["budget 1e+07"]
    assert adamw["gradients"] == 7 * [25 + 128] + 3 * [25 + 2 * 128]
    clipping, stepping = 8, 4
    usual = clipping + stepping
    assert adamw["updates"][1:7] == 6 * [usual]
    # Of three young boxes two are contiguous memory; the third, of columns, is for itself.
    assert adamw["updates"][8:] == 2 * [usual + 2 * 4]
    # Matrices of four sizes, one of them tall; then of six, three of them tall. AdamW's young boxes are three
    # of contiguous memory and two of columns.
    assert muon["updates"][1] == usual + 4 * 25 + 1
    assert muon["updates"][3] == usual + 6 * 25 + 3 + 4 + 2 * 4

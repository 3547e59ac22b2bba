"""The real training loop on fake CUDA tensors: nothing is computed, but every operation is seen.

Run as a process, since torch reads its device hooks once, when it is imported:
``python fake_cuda.py LIBRARY FOLDER CASES``. CASES is a JSON list of cases, each with the run's
``training`` section, a ``budget``, which ``events`` of the schedule, and a planted ``fault`` or null.
Prints what each case did, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)  # before torch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from nasgrow.training import checkpoint, loop, step
from nasgrow.training.records import read_metrics
from tests.training.launches import counted
from tests.training.runs import SCHEDULE, make_run

GPU = torch.device("cuda", 0)
ASKING = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "item"}


class Watch(TorchDispatchMode):
    """Counts what would make Python wait for the device; a value that it asks for is 1."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        on_gpu = any(isinstance(one, Tensor) and one.device.type == "cuda" for one in args)
        if on_gpu and name in ASKING:
            self.waits[name] += 1
            return 1.0
        found = func(*args, **kwargs)
        if name in ("_to_copy", "copy_") and isinstance(found, Tensor) and isinstance(args[0], Tensor):
            source = args[1] if name == "copy_" else args[0]
            waits = not kwargs.get("non_blocking", False) or found.device.type == "cpu"
            if source.device.type != found.device.type and waits:
                self.waits[f"copy to the {found.device.type}"] += 1
        return found


def plant(fault: str | None) -> Any:
    """A backward pass with a fault."""

    def backward(model: Any, tokens_bs: Any, micro_tokens: int) -> Tensor:
        loss = step.backward(model, tokens_bs, micro_tokens)
        if fault == "value":
            float(loss)
        if fault == "copy":
            loss.cpu()
        if fault == "blocking copy":
            torch.ones(3).to(GPU)
        if fault == "device":
            loss = (loss + torch.ones(3)).sum()
        return loss

    return backward


def outcome(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Train a run, and tell how often the loop waited, and the kernels of each step."""
    gradients: list[int] = []
    updates: list[int] = []
    vars(loop)["backward"] = counted(plant(case["fault"]), gradients)
    vars(loop)["update"] = counted(step.update, updates)
    schedule = {**SCHEDULE, "events": [SCHEDULE["events"][place] for place in case["events"]]}
    training = {"evaluations": 2, **case["training"]}
    run, corpus = make_run(folder, budget={"flops": case["budget"]}, schedule=schedule, training=training)
    watch = Watch()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), watch:
            result = loop.train(run, corpus, folder, device=GPU)
    except RuntimeError as error:
        return {"error": str(error).split("\n")[0]}
    kinds = Counter(record["kind"] for record in read_metrics(folder))
    return {
        "status": result.status,
        "steps": result.steps,
        "records": kinds,
        "waits": watch.waits,
        "gradients": gradients,
        "updates": updates,
    }


def main() -> None:
    """Train all cases."""
    folder, cases = Path(sys.argv[2]), json.loads(sys.argv[3])
    # What needs a real device: how fast it is, what it can do, page-locked memory, files.
    patches: list[tuple[Any, str, Any]] = [
        (loop, "matmul_peak", lambda device: 1e12),
        (loop, "compile_for", lambda model, device: None),
        (checkpoint, "save", lambda *args: None),
        (loop, "RECORDS", 4),
        (loop, "DIVERGED", float("inf")),
        (step, "compute_dtype", lambda device: torch.bfloat16),
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        (torch.cuda, "is_bf16_supported", lambda: True),
        (Tensor, "pin_memory", lambda tensor: tensor),
    ]
    for owner, name, value in patches:
        setattr(owner, name, value)
    print(json.dumps([outcome(folder / str(number), case) for number, case in enumerate(cases)]))


if __name__ == "__main__":
    main()

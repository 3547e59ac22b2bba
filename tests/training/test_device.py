"""The device that a process trains on, and the precision of what it computes there."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from nasgrow.training import device as devices
from nasgrow.training.device import compute_dtype, gpu_count, pick_device
from nasgrow.training.machine import numerics

GPU = torch.device("cuda", 0)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine whose only GPU computes in bfloat16, as far as torch tells."""
    compute_dtype.cache_clear()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    yield monkeypatch
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    torch.backends.cuda.enable_cudnn_sdp(True)
    compute_dtype.cache_clear()


def test_a_gpu_is_prepared_to_repeat_its_bits_before_it_is_used(card: pytest.MonkeyPatch) -> None:
    assert pick_device() == GPU
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.are_deterministic_algorithms_enabled()
    # Where torch only warns, attention's backward pass stays the one that adds in any order.
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_the_precision_is_bfloat16_and_float32_without_tf32_and_part_of_the_name_of_a_state(
    card: pytest.MonkeyPatch,
) -> None:
    device = pick_device()
    assert compute_dtype(device) == torch.bfloat16
    stated = {"compute": "bfloat16", "tf32": False, "deterministic": True, "compiled": "blocks"}
    assert stated.items() <= numerics(device).items()
    assert not stated.keys() & numerics(torch.device("cpu")).keys()


def test_without_bfloat16_it_is_float32_with_a_warning_and_never_float16(card: pytest.MonkeyPatch) -> None:
    card.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    with pytest.warns(UserWarning, match="a card does not compute in bfloat16: runs train in float32"):
        device = pick_device()
    assert compute_dtype(device) == torch.float32


def test_torch_counts_gpus_where_no_other_program_can(card: pytest.MonkeyPatch) -> None:
    card.setenv("PATH", "")
    card.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpu_count() == 3


def test_without_a_gpu_it_is_the_cpu_and_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "prepare_gpu", pytest.fail)
    assert pick_device() == torch.device("cpu")
    assert compute_dtype(torch.device("cpu")) == torch.float32

"""Muon in batches is torch's Muon, with a kernel for all matrices of a size."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Muon

from nasgrow.training.muon import BatchedMuon
from tests.training.launches import Launches

SIZES = [(8, 8)] * 4 + [(8, 24)] * 2 + [(24, 8)] * 2


def matrices(sizes: Sequence[tuple[int, int]]) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(size, generator=random)) for size in sizes]


def trained(kind: type[Muon], sizes: Sequence[tuple[int, int]] = SIZES) -> tuple[list[Tensor], Muon, int]:
    """Some matrices after some steps, the last without a gradient; with the kernels of one step."""
    parameters = matrices(sizes)
    optimizer = kind(parameters, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    random = torch.Generator().manual_seed(1)
    for _ in range(5):
        for parameter in parameters[:-1]:
            parameter.grad = torch.randn(parameter.shape, generator=random)
        with Launches() as launches:  # type: ignore[no-untyped-call]
            optimizer.step()
    return [parameter.detach() for parameter in parameters], optimizer, launches.count


def test_it_gives_what_torch_gives() -> None:
    (ours, optimizer, _), (torchs, other, _) = trained(BatchedMuon), trained(Muon)
    start = matrices(SIZES)
    assert torch.equal(ours[-1], start[-1])
    for one, two, before in zip(ours[:-1], torchs[:-1], start, strict=False):
        assert not torch.allclose(one, before, atol=0.01)
        assert torch.allclose(one, two, atol=2e-3)  # products in bfloat16
    assert optimizer.state_dict().keys() == other.state_dict().keys()
    for mine, its in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert mine.keys() == its.keys() == {"momentum_buffer"}
        assert torch.equal(mine["momentum_buffer"], its["momentum_buffer"])


@pytest.mark.parametrize("layers", [1, 3])
def test_the_number_of_kernels_does_not_depend_on_the_number_of_matrices(layers: int) -> None:
    sizes = SIZES * layers
    assert trained(BatchedMuon, sizes)[2] == 3 * 25 + 1  # a tall batch is made contiguous once more
    assert trained(Muon, sizes)[2] > 20 * (len(sizes) - 1)

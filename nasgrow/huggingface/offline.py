"""Grow a checkpoint on disk into a larger one, tensor by tensor, without training.

The operator defines each tensor of the grown model by old tensors. These are read when a new tensor needs
them and freed when it is written, so that memory holds one tensor and its grown version. At the end both
checkpoints are read again, layer by layer, and their logits are compared.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from nasgrow.errors import UserError
from nasgrow.expansions import diff, expand
from nasgrow.growth.engine import stream
from nasgrow.growth.operators import RECIPES, Recipe, Situation
from nasgrow.growth.operators.grown_weights import weights_of
from nasgrow.huggingface.card import CARD, card
from nasgrow.huggingface.checkpoint import SHARD_BYTES, Checkpoint, dtype_name, new_folder, write_checkpoint
from nasgrow.huggingface.families import CONFIG, common_window, config_for, read_config
from nasgrow.huggingface.shards import INDEX
from nasgrow.model import Block, fresh, norm, turns
from nasgrow.operators import AnyOperator, Masked
from nasgrow.params import TensorSpec, table
from nasgrow.shape import Shape

MAX_LOGIT_DIFFERENCE = 1e-5
"""The largest difference of logits, relative to the largest, that counts as the same function."""

CHECKED_TOKENS = 64
"""The length of the sequence on which both checkpoints are compared, in tokens."""

ROWS_AT_ONCE = 16_384
"""The most rows of the output projection that are held in float64 at once."""


class Lazily(Mapping[str, nn.Parameter]):
    """Tensors that are made on access; only the last one is kept in memory."""

    def __init__(self, entries: Mapping[str, TensorSpec], make: Callable[[TensorSpec], Tensor]) -> None:
        self._entries, self._make = entries, make
        self._last: tuple[str, nn.Parameter] | None = None

    def __getitem__(self, name: str) -> nn.Parameter:
        if self._last is None or self._last[0] != name:
            self._last = None  # frees its memory before the next is made
            self._last = name, nn.Parameter(self._make(self._entries[name]), requires_grad=False)
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True)
class LogitComparison:
    """The difference between the logits of two models.

    Attributes:
        difference: The largest difference of a logit, relative to the largest logit.
        divergence: The mean Kullback-Leibler divergence of the next-token distributions, in nats.
    """

    difference: float
    divergence: float

    @property
    def same(self) -> bool:
        """Whether the models compute the same function, up to rounding."""
        return self.difference <= MAX_LOGIT_DIFFERENCE

    def __str__(self) -> str:
        verdict = "the same function" if self.same else "another function"
        differ = f"logits differ by at most {self.difference:.1e} of the largest"
        return f"{verdict}: {differ}, KL {self.divergence:.1e}"


def grow_checkpoint(
    source: Path,
    final: Callable[[Shape], Shape],
    to: Path,
    *,
    operator: AnyOperator,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    largest: int = SHARD_BYTES,
    told: Callable[[str], None] = lambda line: None,
) -> LogitComparison:
    """Grow the checkpoint in a folder and write the result to a new folder; on failure nothing is written.

    The tokenizer and all other files without weights are copied. The model card is new.

    Args:
        source: The folder of the checkpoint.
        final: Called with the checkpoint's shape; returns the shape to grow to.
        to: The folder to write; it must not exist yet, or must be empty.
        operator: How new parameters get their values.
        dtype: The dtype to write. By default the checkpoint's, or float32 if that dtype would round rescaled
            values.
        seed: The seed of the new parameters.
        largest: The most bytes of a file.
        told: Called with a line of information for the user.

    Returns:
        The difference between the logits of the old and the grown checkpoint.

    Raises:
        UserError: The checkpoint cannot be read, has that shape already, or cannot be grown to it;
            or the operator promises to preserve the function exactly, the dtype has at least 32
            bits, and the comparison at the end found that logits differ.
    """
    config = read_config(source)
    # Within a sliding window attention is as ours. Growth does not depend on positions, so it is exact
    # beyond the window too.
    window = common_window(config)
    old = Checkpoint(source, window)
    shape, variant = old.layout.shape, old.layout.variant
    grown = final(shape)
    expansions = diff(shape, grown)
    if not expansions:
        raise UserError(f"{source}: has that shape already: {shape}")
    operator.check(shape, expansions, variant)
    for single, _ in operator.parts(shape, expansions):
        if isinstance(single, Masked):
            raise UserError(
                f"operator {single.kind} opens masks while a model trains, and nothing trains here"
            )
    _, layout = config_for(grown, variant, config)

    def read(entry: TensorSpec) -> Tensor:
        tensor = old.read(entry)
        return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

    tensors: Mapping[str, nn.Parameter] = Lazily(old.entries, read)
    factors = {layout.query_scale}
    for single, share in operator.parts(shape, expansions):
        larger, lineage = expand(shape, share)
        situation = Situation(
            shape, larger, lineage, variant, tensors, fresh, partial(stream, seed, shape, larger), None
        )
        recipe = RECIPES[single.kind](single, situation)
        factors |= {copy.factor for plan in recipe.plans.values() for copy in plan.copies}

        tensors, shape = Lazily(table(larger, variant), partial(_made, recipe, situation)), larger
    written = dtype or _dtype_for(old.dtype, factors)
    if dtype is None and written != old.dtype:
        told(f"writes {dtype_name(written)}: {dtype_name(old.dtype)} would round rescaled values")
    with new_folder(to) as folder:
        write_checkpoint(
            folder, grown, variant, lambda entry: tensors[entry.name], written, like=config, largest=largest
        )
        _copy_rest(source, folder)
        found = compare(old, Checkpoint(folder, window))
        if operator.preserves == "exact" and not found.same and written.itemsize >= 4:
            raise UserError(
                f"{to}: is not written: {operator} preserves logits, and here they differ by "
                f"{found.difference:.1e} of the largest"
            )
        lines = [f"{source.name}: {old.layout.shape}", f"grown by {operator}: {grown}", str(found)]
        facts = {"shape": str(grown), "written as": dtype_name(written)}
        (folder / CARD).write_text(card(to.name, facts, lines, base=source.name), encoding="utf-8")
    return found


def _made(recipe: Recipe, situation: Situation, entry: TensorSpec) -> Tensor:
    """Make a tensor of the grown model."""
    plan = recipe.plans[entry.name]
    names = dict.fromkeys(copy.source.name for copy in plan.copies)
    return weights_of(plan, {name: situation.parameters[name] for name in names}, recipe, situation)


def _dtype_for(dtype: torch.dtype, factors: set[float]) -> torch.dtype:
    """Return the dtype to write: half precision only if all factors are powers of two, which lose no bits."""
    exact = all(math.frexp(factor)[0] == 0.5 for factor in factors)
    return dtype if exact else torch.promote_types(dtype, torch.float32)


def _copy_rest(source: Path, folder: Path) -> None:
    """Copy the files that growth leaves as they are: tokenizer, generation settings, licence.

    Weights and their index, ``config.json`` and ``README.md`` are not copied: the grown checkpoint
    has its own. Folders are left out too.
    """
    for path in sorted(source.iterdir()):
        weights = path.suffix in (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
        index = path.name.endswith((".index.json", INDEX))
        if path.is_file() and not weights and not index and path.name not in (CONFIG, CARD):
            shutil.copyfile(path, folder / path.name)


def compare(first: Checkpoint, second: Checkpoint) -> LogitComparison:
    """Compare the logits of two checkpoints with the same vocabulary on random tokens, in float64.

    The difference is relative to the largest logit of the first checkpoint, which is also the
    reference of the divergence.
    """
    length = min(CHECKED_TOKENS, first.layout.variant.context)
    generator = torch.Generator().manual_seed(0)
    tokens_s = torch.randint(first.layout.variant.vocab, (length,), generator=generator)
    with torch.no_grad():
        a_sv, b_sv = (logits_of(one, tokens_s) for one in (first, second))
        difference = float((a_sv - b_sv).abs().max() / a_sv.abs().max())
        logs = [logits_sv.log_softmax(-1) for logits_sv in (a_sv, b_sv)]
        divergence = float((logs[0].exp() * (logs[0] - logs[1])).sum(-1).mean())
    return LogitComparison(difference, divergence)


def logits_of(checkpoint: Checkpoint, tokens_s: Tensor) -> Tensor:
    """Return the logits (s, V) of a sequence in float64, with one layer of the model in memory at a time."""
    shape, variant = checkpoint.layout.shape, checkpoint.layout.variant
    by_layer: dict[int | None, list[TensorSpec]] = {}
    for entry in checkpoint.entries.values():
        by_layer.setdefault(entry.layer, []).append(entry)
    x_sh = checkpoint.read(checkpoint.entries["embedding"])[tokens_s].double()
    turn_sf2 = turns(len(tokens_s), variant.frequencies(shape.layers[0].groups[0].key // 2))
    for index, layer in enumerate(shape.layers):
        block = Block(layer, variant)
        for entry in by_layer[index]:
            path, _, leaf = entry.name.removeprefix(f"layers.{index}.").rpartition(".")
            tensor = nn.Parameter(checkpoint.read(entry).double(), requires_grad=False)
            block.get_submodule(path).register_parameter(leaf, tensor)
        x_sh = block(x_sh, 1, turn_sf2, None)
    x_sh = norm(x_sh, checkpoint.read(checkpoint.entries["final_norm"]).double(), variant)
    name = "embedding" if variant.tied else "output"
    output = checkpoint.read(checkpoint.entries[name])
    rows_vh = output if variant.tied else output.T
    return torch.cat([x_sh @ part_vh.double().T for part_vh in rows_vh.split(ROWS_AT_ONCE)], 1)

"""The declarations of all operators: options, supported expansions, preservation, cost and source."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from nasgrow.errors import UserError
from nasgrow.expansions import Expansion, expand, kind_of
from nasgrow.flops import step_flops
from nasgrow.operators.base import (
    ALL,
    ALL_BUT_LAYERS,
    Degree,
    Duplicating,
    Operator,
    WholeWidth,
    WidthThenDepth,
    interleaved,
)
from nasgrow.operators.cost import map_flops, mapped_step_flops, widened_mlps
from nasgrow.shape import Shape, Variant

CancellingNoise: TypeAlias = Annotated[float, Field(ge=0, le=1)]
"""The standard deviation of noise on the outgoing weights of copies.

It is a multiple of the root mean square of these weights, and 0 for no noise.
The noise adds up to zero over the copies of each unit, so it preserves the function, whatever its size.
Without noise, copies stay equal forever.
"""
CANCELLING = 0.316
"""The default of :data:`CancellingNoise`: HyperCloning's ratio of 10 dB, the only published value."""


class Preserve(Operator):
    """The expansions as published: zero slices, rescaled old values, and free values for the rest.

    Gesmundo & Maile (2023), "Composable Function-preserving Expansions for Transformer Architectures".
    """

    kind: Literal["preserve"] = "preserve"
    init: Literal["fresh", "matched"] = "fresh"
    """Free values: those of a fresh model, or the same scaled to the old values' root mean square."""
    new: Literal["zero", "paired", "split"] = "zero"
    """New units: with zero slices, in pairs that cancel, or as copies with uneven shares of the old unit."""
    grows = ALL
    degree = "exact"  # for any free values
    source = "Gesmundo & Maile 2023"


PRESERVE = Preserve()
"""The default operator, with default options."""


class Net2Net(Duplicating):
    """Duplicated units whose outgoing weights are divided among them; identity layers.

    Chen, Goodfellow & Shlens (2016), "Net2Net: Accelerating Learning via Knowledge Transfer".
    """

    kind: Literal["net2net"] = "net2net"
    noise: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The standard deviation of the noise on further copies, as a multiple of the root mean square
    of the tensor's old values. Without noise (0) the function is preserved exactly, but copies stay
    equal forever."""
    grows = ALL
    source = "Chen et al. 2016"

    @property
    def preserves(self) -> Degree:
        """Exact without noise."""
        return "nearly" if self.noise else "exact"


class Bert2Bert(Duplicating, WidthThenDepth):
    """Duplicated units or copies of units of the next layer; depth by stacking.

    Chen et al. (2022), "bert2BERT: Towards Reusable Pretrained Language Models".
    """

    kind: Literal["bert2bert"] = "bert2bert"
    init: Literal["fpi", "aki"] = "aki"
    """New units: copies of units of the same layer (function-preserving initialisation), or copies of units
    of the next layer (advanced knowledge initialisation)."""
    noise: CancellingNoise = CANCELLING
    """Makes copies of one unit diverge; not in the paper (0 is its form). See
    :data:`CancellingNoise`."""
    grows = ALL
    degree = "no"  # stacked layers act twice, and units of the next layer compute something else
    source = "Chen et al. 2022"

    @property
    def equal_layers(self) -> bool:
        """Whether new units come from the next layer."""
        return self.init == "aki"

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Also refuse layers of unequal sizes if new units come from the next layer."""
        super().check(old, expansions, variant)
        if self.equal_layers and ALL_BUT_LAYERS & set(map(kind_of, expansions)) and len(set(old.layers)) > 1:
            raise UserError(
                f"operator {self.kind} with init aki takes new units from the next layer, so all layers must "
                f"have equal sizes"
            )

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """Return all layers in order, as often as they fit; then the top layers for the rest."""
        whole = new - new % old
        return tuple(index % old if index < whole else old - new + index for index in range(new))


class Lemon(Duplicating):
    """Copies with unequal shares, so that they diverge without noise; new layers add nothing.

    Wang et al. (2023), "LEMON: Lossless Model Expansion".
    """

    kind: Literal["lemon"] = "lemon"
    grows = ALL
    degree = "exact"  # for any sizes
    source = "Wang et al. 2023"


class HyperClone(Duplicating):
    """The model tiled by integer factors, with noise that cancels over copies.

    Samragh et al. (2024), "Scaling Smart: Accelerating Large Language Model Pre-training with Small Model
    Initialization", where it is called HyperCloning.
    """

    kind: Literal["hyperclone"] = "hyperclone"
    noise: CancellingNoise = CANCELLING
    """The noise of the paper, on all tiles. See :data:`CancellingNoise`."""
    grows = ALL_BUT_LAYERS
    multiples = ALL_BUT_LAYERS
    degree = "exact"  # with noise or without
    source = "Samragh et al. 2024"


class Fusion(WholeWidth):
    """Copies of the model side by side: block-diagonal matrices, and the average of the copies' logits.

    Mazzawi et al. (2023), "Deep Fusion: Efficient Network Training via Pre-trained Initializations". Two
    different models are fused with :func:`nasgrow.growth.fuse`.
    """

    kind: Literal["fusion"] = "fusion"
    noise: CancellingNoise = CANCELLING
    """Makes copies of the model diverge; not in the paper (0 is its form). See :data:`CancellingNoise`."""
    grows = frozenset({"hidden", "mlp", "heads"})
    multiples = frozenset({"hidden", "mlp", "heads"})
    degree = "exact"  # with noise or without
    source = "Mazzawi et al. 2023"


class Staged(WidthThenDepth, WholeWidth):
    """Copies of the model side by side; each layer followed by copies of itself that add nothing.

    Shen et al. (2022), "Staged Training for Transformer Language Models". The paper only doubles;
    larger factors repeat that. The paper's rule for when to grow works with any operator:
    :mod:`nasgrow.training.slope`.
    """

    kind: Literal["staged"] = "staged"
    noise: CancellingNoise = CANCELLING
    """Makes copies of the model diverge; not in the paper (0 is its form). See :data:`CancellingNoise`."""
    grows = frozenset({"hidden", "mlp", "heads", "layers"})
    multiples = frozenset({"hidden", "mlp", "heads", "layers"})
    degree = "exact"  # with noise or without
    source = "Shen et al. 2022"

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """Return each layer, directly followed by its copies."""
        return interleaved(old, new)


class Stack(Operator):
    """Depth by stacking the model on itself: layer i is a copy of old layer i mod N.

    Gong et al. (2019), "Efficient Training of BERT by Progressively Stacking"; Du et al. (2024), "Stacking
    Your Transformers", where it is called G_stack.
    """

    kind: Literal["stack"] = "stack"
    grows = frozenset({"layers"})
    degree = "no"  # every copied layer acts once more
    source = "Gong et al. 2019; Du et al. 2024"

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """Return all layers in order, repeated."""
        return tuple(index % old for index in range(new))


class Interleave(Operator):
    """Depth by copying each layer in place: layer i is a copy of old layer floor(i N / N^).

    Du et al. (2024), "Stacking Your Transformers", one of the operators that it compares.
    """

    kind: Literal["interleave"] = "interleave"
    grows = frozenset({"layers"})
    degree = "no"  # every copied layer acts once more
    source = "Du et al. 2024"

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """Return each layer, directly followed by its copies."""
        return interleaved(old, new)


class GradMax(Operator):
    """New MLP units with the outgoing weights that maximise their gradients; all else as `preserve`.

    Evci et al. (2022), "GradMax: Growing Neural Networks using Gradient Information".
    """

    kind: Literal["gradmax"] = "gradmax"
    grows = ALL
    learns = True
    degree = "exact"  # incoming weights of new units are zero
    source = "Evci et al. 2022"

    def check_kinds(self, kinds: frozenset[str], variant: Variant) -> None:
        """Also refuse ReLU units without biases: their slope at zero is zero, and no bias can shift them."""
        super().check_kinds(kinds, variant)
        if "mlp" in kinds and variant.activation == "relu" and not variant.gated and not variant.biases:
            raise UserError(
                f"operator {self.kind} cannot grow mlp with biases: false and activation: relu, which has no "
                "slope at zero"
            )

    def flops(self, old: Shape, expansions: Sequence[Expansion], variant: Variant, sequences: int) -> int:
        """Return the FLOPs of one training step of the grown model, and of a product for each widened MLP.

        If units are gated, there are two products for each gate instead, and every h new units have a gate.
        0 if no MLP is widened.
        """
        new, lineage = expand(old, expansions)
        widened = widened_mlps(old, new, lineage)
        if not widened:
            return 0
        added = [new.layers[layer].mlp - size for layer, size in widened.items()]
        products = len(added) * new.hidden
        if variant.gated:
            products = sum(ceil(units / new.hidden) for units in added) * (new.hidden + 1)
        tokens = sequences * variant.context
        return step_flops(new, variant, sequences) + 2 * tokens * new.hidden * products


class Ligo(Operator):
    """A learned linear map from the old parameters to the new ones, factorised by axes and layers.

    Wang et al. (2023), "Learning to Grow Pretrained Models for Efficient Transformer Training".
    """

    kind: Literal["ligo"] = "ligo"
    steps: Annotated[int, Field(ge=1)] = 100
    """The number of training steps of the map, each on another batch."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """The learning rate of Adam, which trains the map."""
    grows = ALL
    mixes_layers = True
    learns = True
    degree = "no"  # the map is trained to lower the loss
    source = "Wang et al. 2023"

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Also refuse to grow depth unless all layers are equal, before the event and after it."""
        super().check(old, expansions, variant)
        new = expand(old, expansions)[0]
        if len(new.layers) > len(old.layers):
            for when, shape in (("before", old), ("after", new)):
                if len(set(shape.layers)) > 1:
                    unlike = next(layer for layer in shape.layers if layer != shape.layers[0])
                    raise UserError(
                        f"operator {self.kind} mixes layers where their number grows, so all must be equal; "
                        f"{when} the event there are {shape.layers[0]} and {unlike}"
                    )

    def flops(self, old: Shape, expansions: Sequence[Expansion], variant: Variant, sequences: int) -> int:
        """Return the FLOPs of learning the map and of applying it.

        Each learning step trains the map through the grown model, on ``sequences`` sequences. It
        computes the map forward and backward too. After the last step, the map is computed again.
        """
        new = expand(old, expansions)[0]
        once, learning = map_flops(old, new, variant)
        return self.steps * (mapped_step_flops(old, new, variant, sequences) + learning) + once


class Random(Operator):
    """New layers with the values of a fresh model: their output is not zero, so the loss jumps.

    The plain alternative to `preserve` and `stack`. It shows what preserving the function is worth.
    """

    kind: Literal["random"] = "random"
    grows = frozenset({"layers"})
    degree = "no"  # new layers compute something untrained at once
    source = "a control experiment"


class Shuffled(Operator):
    """A control: grow as with `preserve`, then permute the old values of each layer within their tensor.

    The values keep their distribution but lose what they learned. If growth works as well with this
    operator as with `preserve`, the trained layers do not help.
    """

    kind: Literal["shuffled"] = "shuffled"
    grows = ALL
    degree = "no"  # the layers compute something else afterwards
    source = "a control experiment"


class Masked(Operator):
    """The expansions of `preserve`, with fresh values in place of zero slices, faded in by masks.

    Yao et al. (2023), "Masked Structural Growth for 2x Faster Language Model Pre-training".
    """

    kind: Literal["masked"] = "masked"
    opening: Annotated[float, Field(gt=0, le=1)] = 0.1
    """The fraction of the budget over which masks open after an event, at most half of the unspent
    budget."""
    grows = ALL
    degree = "exact"  # at the event, where masks are closed
    source = "Yao et al. 2023"


def opening_within(wanted: float, spent: float) -> float:
    """Return the fraction of the budget over which a mask opens.

    It is at most half of the unspent budget, so that the mask is open at the end of training.

    Args:
        wanted: The fraction that the operator's option asks for.
        spent: The fraction of the budget spent at the event.
    """
    return min(wanted, (1 - spent) / 2)

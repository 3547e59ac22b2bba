"""The operators: options, source, what each can do, how far it preserves the function, what it costs."""

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
"""The standard deviation of noise on what reads copies, in root mean squares of the copied values.

It adds up to zero over the copies of each unit, so the function stays what it is, whatever its size. Without
any, copies stay equal for ever.
"""
CANCELLING = 0.316
"""Its default: HyperCloning's ratio of 10 dB, the one size for such noise that was published."""


class Preserve(Operator):
    """Zero slices, rescaled old values, and free parts: the expansions as published.

    Gesmundo & Maile (2023), "Composable Function-preserving Expansions for Transformer Architectures".
    """

    kind: Literal["preserve"] = "preserve"
    init: Literal["fresh", "matched"] = "fresh"
    """Free values: a fresh model's; or those scaled to the root mean square of the tensor's old values."""
    new: Literal["zero", "paired", "split"] = "zero"
    """New units: with zero slices; in pairs that cancel; or as copies that share unevenly with the old."""
    grows = ALL
    source = "Gesmundo & Maile 2023"

    @property
    def preserves(self) -> Degree:
        """Exactly, whatever the free values are."""
        return "exact"


PRESERVE = Preserve()
"""The default."""


class Net2Net(Duplicating):
    """Duplicated units whose outgoing weights are divided among them; identity layers.

    Chen, Goodfellow & Shlens (2016), "Net2Net: Accelerating Learning via Knowledge Transfer".
    """

    kind: Literal["net2net"] = "net2net"
    noise: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The standard deviation of the noise on second copies, in root mean squares of the tensor's old values.
    Without any the function is preserved exactly, but copies stay equal for ever."""
    grows = ALL
    source = "Chen et al. 2016"

    @property
    def preserves(self) -> Degree:
        """Exactly without noise."""
        return "nearly" if self.noise else "exact"


class Bert2Bert(Duplicating, WidthThenDepth):
    """Duplicated units, or in their place units of the next layer; depth by stacking.

    Chen et al. (2022), "bert2BERT: Towards Reusable Pretrained Language Models".
    """

    kind: Literal["bert2bert"] = "bert2bert"
    init: Literal["fpi", "aki"] = "aki"
    """New units: copies of the layer's own (function-preserving initialisation), or what the next layer has
    in their place (advanced knowledge initialisation)."""
    noise: CancellingNoise = CANCELLING
    """Parts copies of one unit; ours, 0 is the paper's form. See :data:`CancellingNoise`."""
    grows = ALL
    source = "Chen et al. 2022"

    @property
    def preserves(self) -> Degree:
        """Not: stacked layers act twice, and units of the next layer do something else."""
        return "no"

    @property
    def equal_layers(self) -> bool:
        """Where new units come from the next layer."""
        return self.init == "aki"

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Refuse unequal layers where new units come from the next one."""
        super().check(old, expansions, variant)
        if self.equal_layers and ALL_BUT_LAYERS & set(map(kind_of, expansions)) and len(set(old.layers)) > 1:
            raise UserError(
                f"operator {self.kind} with init aki takes new units from the next layer, so all layers must "
                f"have equal sizes"
            )

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """All layers in order, as often as they fit; above them the top ones."""
        whole = new - new % old
        return tuple(index % old if index < whole else old - new + index for index in range(new))


class Lemon(Duplicating):
    """Copies with unequal shares, so that they part by themselves; closed layers.

    Wang et al. (2023), "LEMON: Lossless Model Expansion".
    """

    kind: Literal["lemon"] = "lemon"
    grows = ALL
    source = "Wang et al. 2023"

    @property
    def preserves(self) -> Degree:
        """Exactly, for any sizes."""
        return "exact"


class HyperClone(Duplicating):
    """The model tiled by whole factors, with noise that cancels.

    Samragh et al. (2024), "Scaling Smart: Accelerating Large Language Model Pre-training with Small Model
    Initialization", where it is called HyperCloning.
    """

    kind: Literal["hyperclone"] = "hyperclone"
    noise: CancellingNoise = CANCELLING
    """The paper's, on all tiles. See :data:`CancellingNoise`."""
    grows = ALL_BUT_LAYERS
    multiples = ALL_BUT_LAYERS
    source = "Samragh et al. 2024"

    @property
    def preserves(self) -> Degree:
        """Exactly, with noise or without."""
        return "exact"


class Fusion(WholeWidth):
    """The model side by side with itself: block-diagonal matrices, and the average of what comes out.

    Mazzawi et al. (2023), "Deep Fusion: Efficient Network Training via Pre-trained Initializations". Two
    different models are fused with :func:`nasgrow.growth.fuse`.
    """

    kind: Literal["fusion"] = "fusion"
    noise: CancellingNoise = CANCELLING
    """Parts the copies of the model; ours, 0 is the paper's form. See :data:`CancellingNoise`."""
    grows = frozenset({"hidden", "mlp", "heads"})
    multiples = frozenset({"hidden", "mlp", "heads"})
    source = "Mazzawi et al. 2023"

    @property
    def preserves(self) -> Degree:
        """Exactly, with noise or without."""
        return "exact"


class Staged(WidthThenDepth, WholeWidth):
    """The model side by side with itself; layers followed by copies of themselves that add nothing.

    Shen et al. (2022), "Staged Training for Transformer Language Models". They double; more is doubling
    again. When they do is a rule for any operator: :mod:`nasgrow.training.slope`.
    """

    kind: Literal["staged"] = "staged"
    noise: CancellingNoise = CANCELLING
    """Parts the copies of the model; ours, 0 is the paper's form. See :data:`CancellingNoise`."""
    grows = frozenset({"hidden", "mlp", "heads", "layers"})
    multiples = frozenset({"hidden", "mlp", "heads", "layers"})
    source = "Shen et al. 2022"

    @property
    def preserves(self) -> Degree:
        """Exactly, with noise or without."""
        return "exact"

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """Each layer as often as it has copies, one after the other."""
        return interleaved(old, new)


class Stack(Operator):
    """Depth by copying: the whole model on top of itself, layer i being a copy of old layer i mod N.

    Gong et al. (2019), "Efficient Training of BERT by Progressively Stacking"; Du et al. (2024), "Stacking
    Your Transformers", where it is called G_stack.
    """

    kind: Literal["stack"] = "stack"
    grows = frozenset({"layers"})
    source = "Gong et al. 2019; Du et al. 2024"

    @property
    def preserves(self) -> Degree:
        """Not: every copied layer acts once more."""
        return "no"

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """All layers in order, again and again."""
        return tuple(index % old for index in range(new))


class Interleave(Operator):
    """Depth by copying: each layer followed by its copies, layer i being a copy of old layer floor(i N / N^).

    Du et al. (2024), "Stacking Your Transformers", among the operators it compares.
    """

    kind: Literal["interleave"] = "interleave"
    grows = frozenset({"layers"})
    source = "Du et al. 2024"

    @property
    def preserves(self) -> Degree:
        """Not: every copied layer acts once more."""
        return "no"

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """Each layer as often as it has copies, one after the other."""
        return interleaved(old, new)


class GradMax(Operator):
    """New MLP units with outgoing weights that let the largest gradients through; the rest as `preserve`.

    Evci et al. (2022), "GradMax: Growing Neural Networks using Gradient Information".
    """

    kind: Literal["gradmax"] = "gradmax"
    grows = ALL
    learns = True
    source = "Evci et al. 2022"

    @property
    def preserves(self) -> Degree:
        """Exactly: incoming weights of new units are zero."""
        return "exact"

    def check_kinds(self, kinds: frozenset[str], variant: Variant) -> None:
        """Refuse MLP units whose slope at zero is zero, and that have no bias to lift them."""
        super().check_kinds(kinds, variant)
        if "mlp" in kinds and variant.activation == "relu" and not variant.gated and not variant.biases:
            raise UserError(
                f"operator {self.kind} cannot grow mlp with biases: false and activation: relu, which has no "
                "slope at zero"
            )

    def flops(self, old: Shape, expansions: Sequence[Expansion], variant: Variant, sequences: int) -> int:
        """One batch through the grown model and back, and a product for each MLP that is widened.

        Two for each gate, where units are gated: every h new units have one.
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
    """Training steps of the map, each on a batch of its own."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Adam's, for the map."""
    grows = ALL
    mixes_layers = True
    learns = True
    source = "Wang et al. 2023"

    @property
    def preserves(self) -> Degree:
        """Not: the map is trained to lower the loss."""
        return "no"

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Refuse to mix layers that are unlike each other."""
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
        """The steps, each with its products of the map, forward and backward; and the map once more."""
        new = expand(old, expansions)[0]
        once, learning = map_flops(old, new, variant)
        return self.steps * (mapped_step_flops(old, new, variant, sequences) + learning) + once


class Shuffled(Operator):
    """A control: grown as by `preserve`, then every layer's old values are permuted within their tensor.

    The values keep their distribution and lose what they learned. If growth with this operator does as well
    as with `preserve`, the trained layers are not what helps.
    """

    kind: Literal["shuffled"] = "shuffled"
    grows = ALL
    source = "a control experiment"

    @property
    def preserves(self) -> Degree:
        """Not: the layers compute something else afterwards."""
        return "no"


class Masked(Operator):
    """The expansions of `preserve`, with fresh values behind masks that open in place of zero slices.

    Yao et al. (2023), "Masked Structural Growth for 2x Faster Language Model Pre-training".
    """

    kind: Literal["masked"] = "masked"
    opening: Annotated[float, Field(gt=0, le=1)] = 0.1
    """The fraction of the budget over which masks open after an event; at most half of what is left."""
    grows = ALL
    source = "Yao et al. 2023"

    @property
    def preserves(self) -> Degree:
        """Exactly, at the event: masks are closed."""
        return "exact"


def opening_within(wanted: float, spent: float) -> float:
    """How long a mask takes to open: never more than half of what is left, so that it is open at the end."""
    return min(wanted, (1 - spent) / 2)

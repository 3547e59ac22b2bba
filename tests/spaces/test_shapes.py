"""Fixed shapes: every one between the smallest start and the final shape, and those that are given whole."""

from __future__ import annotations

from nasgrow.schedule import Schedule
from nasgrow.spaces import FixedShapes
from nasgrow.spaces.grid import points
from nasgrow.spaces.shapes import SHARE_PREFIX, given
from nasgrow.spaces.training import PEAK
from tests.spaces.asking import FILES, FINAL, FixedTrial, RandomTrial, space

COMPOUND = {"kind": "compound", "dims": ["hidden", "layers"], "start": [1, 0.25]}


def test_each_dimension_that_grows_has_its_own_share_down_to_the_smallest_start() -> None:
    base = space(COMPOUND, rates=(0.003, 0.006))
    shapes = FixedShapes(base)
    assert list(shapes.settings) == ["share.hidden", "share.layers", PEAK]
    found = {point.schedule.start for point in map(shapes.at, points(shapes).values())}
    assert {shape.hidden for shape in found} == {64, 48, 32, 24, 16}
    assert {len(shape.layers) for shape in found} == {1, 2, 3, 4}
    assert {base.smallest, FINAL, base.fixed(0.25, ["layers"]), base.fixed(0.25, ["hidden"])} <= found
    assert len(found) == 20, "none twice"
    assert all(layer == FINAL.layers[0] for shape in found for layer in shape.layers), "these do not grow"


def test_a_shape_that_is_given_whole_is_a_point_at_a_learning_rate() -> None:
    shapes = FixedShapes(space(COMPOUND, rates=(0.003, 0.006)))
    uneven = FINAL.with_layers([FINAL.layers[0], FINAL.layers[0].of_heads(7, FINAL.layers[0].heads)])
    point = shapes.at({**given(uneven), PEAK: 0.048})
    assert (point.schedule, point.training) == (Schedule(uneven), {PEAK: 0.048}), "beyond the edge, too"


def test_every_shipped_space_has_fixed_shapes() -> None:
    for path in FILES:
        base = space(str(path), rates=(0.003, 0.006))
        shapes = FixedShapes(base)
        assert [name for name in shapes.settings if name.startswith(SHARE_PREFIX)], path
        for seed in range(20):
            point = shapes.sample(RandomTrial(seed))
            assert not point.schedule.events
            assert set(point.training) == {PEAK}
        whole = {name: 1.0 for name in shapes.settings if name.startswith(SHARE_PREFIX)}
        final = {name: setting.values[0] for name, setting in shapes.settings.items() if name not in whole}
        assert shapes.sample(FixedTrial({**whole, **final})).schedule.start in (
            (base.final,) if base.free_final is None else base.free_final.all()
        )

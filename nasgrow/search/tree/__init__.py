"""Tree search: branches of schedules that begin alike, of which the most promising is trained on.

``profile`` says how far apart two points are, ``value`` predicts the final loss of points from those of
others, ``outlook`` that of a branch from its loss so far, and ``search`` decides what to train next.
"""

from nasgrow.search.tree.search import Tree

__all__ = ["Tree"]

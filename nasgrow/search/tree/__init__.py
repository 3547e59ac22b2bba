"""Tree search: branches of schedules that begin alike, of which the most promising is trained on.

``leaves`` are points and ``branches`` trials. ``profile`` says how far apart points are, ``value`` predicts
the final loss of points from those of others, ``outlook`` that of a branch from its loss so far. ``sample``
draws the points to consider, ``passed`` says how far their ways were trained, and ``search`` decides what to
train next.
"""

from nasgrow.search.tree.search import Tree

__all__ = ["Tree"]

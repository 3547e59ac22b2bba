"""Counts the kernels that a GPU would launch."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NO_KERNEL = {"_unsafe_view", "empty", "empty_like", "empty_strided", "_local_scalar_dense"}


def launches(func: Any, args: Any) -> int:
    """The kernels of one operation.

    Views take none. A list of tensors takes one (torch divides lists of many tensors into several), but one
    for each tensor where any of them is a box that is no contiguous memory.
    """
    name = func.overloadpacket.__name__
    if func.namespace != "aten" or func.is_view or name in NO_KERNEL:
        return 0
    if name.startswith("_foreach"):
        lists = [one for one in args if isinstance(one, (list, tuple)) and isinstance(one[0], Tensor)]
        dense = all(tensor.is_contiguous() for tensors in lists for tensor in tensors)
        return 1 if dense else len(lists[0])
    return 1


class Launches(TorchDispatchMode):
    """Counts kernels while it is entered."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += launches(func, args)
        return func(*args, **(kwargs or {}))


def counted(function: Any, found: list[int]) -> Any:
    """A function that adds the number of its kernels to a list at each call."""

    def counting(*args: Any, **options: Any) -> Any:
        with Launches() as mode:  # type: ignore[no-untyped-call]
            result = function(*args, **options)
        found.append(mode.count)
        return result

    return counting

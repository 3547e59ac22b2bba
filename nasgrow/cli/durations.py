"""Times to read."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours, as a person would say; nothing for None."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def between(low: float, high: float) -> str:
    """A time that is known to lie between two."""
    least, most = duration(low), duration(high)
    if least == most:
        return f"about {least}"
    return f"at most {most}" if low == 0 else f"{least} to {most}"

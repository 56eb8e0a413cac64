"""Numbers as people read them."""

from autoshard.units import GIB, KIB, MIB, MS, US


def count(n: float) -> str:
    """``46.7 B``, ``12.3 M``, ``512``."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(n) >= size:
            return f"{n / size:.4g} {unit}"
    return f"{n:,.0f}" if n == int(n) else f"{n:.4g}"


def flops(n: float) -> str:
    """``25.5 GFLOP``."""
    for size, unit in ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP")):
        if n >= size:
            return f"{n / size:.4g} {unit}"
    return f"{n:.4g} FLOP" if n else "-"


def num_bytes(n: float) -> str:
    """``896.0 KiB``."""
    for size, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n:.0f} B" if n else "-"


def seconds(s: float) -> str:
    """``18.83 ms``, ``4.21 us``, ``1.2 s``."""
    if s >= 1:
        return f"{s:.3g} s"
    return f"{s / MS:.2f} ms" if s >= MS else f"{s / US:.2f} us"


def share(x: float) -> str:
    """``12.3 %``; nothing, but for rounding, is ``0``."""
    return "0" if abs(x) < 1e-12 else f"{100 * x:.3g} %"


def choice(c: int | None) -> str:
    """``0``, ``1`` or ``-`` for replicated."""
    return "-" if c is None else str(c)


def bar(part: float, whole: float, width: int = 24) -> str:
    """A bar of ``width`` cells, filled in proportion (at least one cell for anything)."""
    filled = round(width * part / whole) if whole > 0 else 0
    return "█" * max(filled, 1 if part > 0 else 0)

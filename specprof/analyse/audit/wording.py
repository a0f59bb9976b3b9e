"""Numbers inside sentences: three digits are as many as anybody's benchmark is good for."""

from __future__ import annotations


def figure(value: float) -> str:
    """171 · 60.3 · 2.84 · 0.0262 · 48,266."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def tokens(value: float) -> str:
    """A mean number of tokens, `61`; with a decimal only where it is tiny."""
    return f"{value:,.0f}" if value >= 10 else figure(value)


def speed(value: float) -> str:
    """`171 tok/s`."""
    return f"{figure(value)} tok/s"


def times(value: float) -> str:
    """`2.84×`, always with the decimals that decide verdicts."""
    return f"{value:.2f}×" if 0.1 <= value < 100 else f"{figure(value)}×"


def seconds(value: float) -> str:
    """`84 ms`, `2.84 s`."""
    return f"{figure(value * 1000)} ms" if value < 0.9995 else f"{value:.2f} s" if value < 100 else f"{figure(value)} s"


def share(value: float) -> str:
    """`33%`, `0.4%`."""
    return f"{value:.0%}" if abs(value) >= 0.0995 or value == 0 else f"{value:.1%}"


def change(value: float) -> str:
    """`+1.3%`."""
    return f"{value:+.1%}"

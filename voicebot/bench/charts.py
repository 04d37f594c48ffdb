"""Charts of the benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def turns_chart(figures: dict[str, Any], folder: Path) -> Path:
    """Delay against cut-ins, a point per eagerness; the baselines as crosses. Writes turns.png too;
    gives the path of turns.svg."""
    from matplotlib.figure import Figure  # no window system: the figure alone, without pyplot

    folder.mkdir(parents=True, exist_ok=True)
    chart = Figure(figsize=(8, 5), layout="constrained")
    axes = chart.subplots()
    curve = [point for point in figures["curve"] if point["delay_p50_ms"] is not None]
    cut_ins = [point["cut_in_rate"] * 100 for point in curve]
    for key, label in (("delay_p50_ms", "p50"), ("delay_p90_ms", "p90")):
        axes.plot([point[key] for point in curve], cut_ins, "o-", label=f"voicebot, {label}")
        for point, rate in zip(curve, cut_ins, strict=True):
            axes.annotate(
                f"{point['eagerness']:g}", (point[key], rate), textcoords="offset points", xytext=(4, 4)
            )
    for name, point in figures["baselines"].items():
        for key, label in (("delay_p50_ms", "p50"), ("delay_p90_ms", "p90")):
            if point[key] is not None:
                axes.plot(point[key], point["cut_in_rate"] * 100, "x", markersize=9, label=f"{name}, {label}")
    axes.set_xlabel("endpointing delay, ms after the end of the turn")
    axes.set_ylabel("turns cut in, %")
    axes.set_title("Eagerness (the numbers at the points): sooner, or more patient")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    path = folder / "turns.svg"
    chart.savefig(path)
    chart.savefig(path.with_suffix(".png"), dpi=150)
    return path

"""What the benchmarks have in common: quantiles, the machine they ran on, JSON files."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` (0..1) of the values lie, interpolated; None of nothing."""
    return float(np.quantile(np.asarray(values, float), share)) if len(values) else None


def machine() -> dict[str, Any]:
    """What the figures were measured on, and how busy it was: reported with every benchmark."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def write_json(path: Path, figures: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

"""The commands under `voicebot bench`. Each prints a table; `--json FILE` has the same figures, `--out DIR` charts."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Measure: turn-taking, recognition, whole calls. Every command prints a table for people.",
    no_args_is_help=True,
)

"""The commands under `voicebot bench`: tables for people, `--json FILE` for machines, `--out DIR` charts."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Measure: turn-taking, recognition, whole calls. Every command prints a table for people.",
    no_args_is_help=True,
)

"""`voicebot models`: what the catalogue has and the cache holds, and fetching it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from voicebot.models.catalogue import Catalogue, Entry, ModelError, load_catalogue
from voicebot.models.pull import PullEvent, Report, pull
from voicebot.models.store import check, describe, verify

if TYPE_CHECKING:
    from voicebot.config import Config

app = typer.Typer(help="The model catalogue and the cache.", no_args_is_help=True)

ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Configuration file.")]
CacheOption = Annotated[
    Path | None, typer.Option("--cache", metavar="DIR", help="Model cache, instead of the configuration's.")
]


@contextlib.contextmanager
def _errors_shown() -> Iterator[None]:
    """What a person can mend goes to stderr without a traceback, and the exit code is 1."""
    from voicebot.config import ConfigError

    try:
        yield
    except (ConfigError, ModelError) as error:
        typer.echo(f"voicebot: {error}", err=True)
        raise typer.Exit(1) from None


def _loaded(config_file: Path | None, cache: Path | None) -> tuple[Config, Path, Catalogue]:
    from voicebot.config import load_config

    config = load_config(config_file)
    return config, cache or config.models.cache, load_catalogue(config.models.catalogues)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


@app.command("list")
def list_models(
    config_file: ConfigOption = None,
    cache: CacheOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for machines.")] = False,
    deep: Annotated[
        bool, typer.Option("--verify", help="Hash whole files; exit 1 if a model in the cache is damaged.")
    ] = False,
) -> None:
    """List the catalogue's models and their state in the cache: ready, absent or damaged."""
    with _errors_shown():
        _, folder, catalogue = _loaded(config_file, cache)
        rows = [_row(entry, folder, deep) for entry in catalogue.values()]
    if as_json:
        typer.echo(json.dumps({"cache": str(folder), "models": rows}, indent=2))
    else:
        _print_table(rows)
    damaged = [row for row in rows if row["state"] == "damaged"]
    for row in damaged:
        mend = f"run `voicebot models pull {row['id']}`"
        typer.echo(f"voicebot: model '{row['id']}' is damaged: {row['problem']}: {mend}", err=True)
    if deep and damaged:
        raise typer.Exit(1)


def _row(entry: Entry, cache: Path, deep: bool) -> dict[str, object]:
    states = verify(entry, cache) if deep else check(entry, cache)
    bad = [state for state in states if state.state != "ok"]
    state = "ready" if not bad else "damaged"
    if all(item.state == "missing" for item in states):
        state = "absent"
    return {
        "id": entry.id,
        "kind": entry.kind,
        "size": entry.size,
        "licence": entry.licence,
        "state": state,
        "problem": describe(bad) if state == "damaged" else "",
        "description": entry.description,
        "provenance": entry.provenance,
        "source": entry.source.model_dump(),
    }


def _print_table(rows: list[dict[str, object]]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe has no edge to wrap at
    table = Table("id", "kind", "size", "licence", "state", box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for row in rows:
        size = _megabytes(int(str(row["size"])))
        texts = [str(row["id"]), str(row["kind"]), size, str(row["licence"]), str(row["state"])]
        table.add_row(*map(escape, texts))
    console.print(table)


@app.command("pull")
def pull_models(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[IDS]...", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", help="Everything in the catalogue.")] = False,
    config_file: ConfigOption = None,
    cache: CacheOption = None,
) -> None:
    """Fetch models into the cache, checked. Without IDS: those that the configuration needs."""
    if ids and every:
        raise typer.BadParameter("give IDS or --all, not both")
    with _errors_shown():
        config, folder, catalogue = _loaded(config_file, cache)
        wanted = list(catalogue) if every else (ids or config.model_ids())
        with _shown(Console()) as report:
            pull(wanted, folder, catalogue, report)


@contextlib.contextmanager
def _shown(console: Console) -> Iterator[Report]:
    """On a terminal, bars and a line per finished model; elsewhere the lines alone."""

    def line(event: PullEvent) -> None:
        text = {
            "pulled": f"pulled {event.model} ({_megabytes(event.done)})",
            "kept": f"{event.model} is there and verifies",
            "local": f"{event.model} is a path: nothing to pull",
        }.get(event.step)
        if text:
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield line
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=console, transient=True) as bars:
        current: tuple[str, str, TaskID] | None = None

        def show(event: PullEvent) -> None:
            nonlocal current
            if current and current[:2] != (event.model, event.step):
                bars.remove_task(current[2])
                current = None
            if event.step in ("pulled", "kept", "local"):
                line(event)
                return
            if current is None:
                label = f"{event.step} {event.model}"
                current = event.model, event.step, bars.add_task(label, total=event.total)
            bars.update(current[2], completed=event.done, total=event.total)

        yield show

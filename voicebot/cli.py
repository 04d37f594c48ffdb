"""The command line: `voicebot serve | replay | models | doctor | bench`."""

from __future__ import annotations

import json
import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from voicebot import __version__, clock
from voicebot.bench.commands import app as bench_app
from voicebot.config import Config, ConfigError, load_config
from voicebot.latency import STAGES
from voicebot.models.commands import app as models_app

app = typer.Typer(
    help="A voice-bot server that answers calls as fast as a person does.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models_app, name="models")
app.add_typer(bench_app, name="bench")
stderr = Console(stderr=True)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="Configuration file; $VOICEBOT_CONFIG or configs/embedded.yaml if absent."
    ),
]
AgentOption = Annotated[Path | None, typer.Option(help="Agent file, instead of the configuration's own.")]


class Speed(StrEnum):
    """How fast a recording is replayed."""

    realtime = "realtime"
    max = "max"


def main() -> None:
    """The console script. Exit codes: 0 done, 1 failed with a reason on stderr, 2 wrong usage."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"voicebot {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def serve(config: ConfigOption = None, agent: AgentOption = None) -> None:
    """Answer calls: the page at /, WebRTC offers at /api/offer, WHIP at /whip.

    Settings come from the configuration file; VOICEBOT_SECTION__FIELD overrides one, for example
    VOICEBOT_SERVER__PORT=9000.
    """
    from voicebot.engines import EngineError
    from voicebot.models import ModelError
    from voicebot.server.serve import CannotListen
    from voicebot.server.serve import serve as run_server

    loaded = _load(config, agent)
    _log_to_stderr(loaded)
    try:
        clock.run(run_server(loaded, Console()))
    except (CannotListen, ConfigError, EngineError, ModelError) as error:
        _fail(str(error))


@app.command()
def replay(
    audio: Annotated[list[Path], typer.Argument(help="Recordings: wav, flac, mp3, ogg.", metavar="AUDIO...")],
    config: ConfigOption = None,
    agent: AgentOption = None,
    speed: Annotated[
        Speed, typer.Option(help="realtime: true latencies. max: on a virtual clock, same turns every time.")
    ] = Speed.realtime,
    channel: Annotated[
        int, typer.Option(min=0, help="The caller's channel in a recording of several, counted from 0.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the bot's audio, a stereo mix and the records.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File for one JSON record per turn, all recordings.")
    ] = None,
) -> None:
    """Play recorded callers to the bot and show what was heard, what was answered, and how fast.

    The exit code is 1 if any recording could not be replayed; the others are replayed all the same.
    """
    from voicebot.engines import EngineError
    from voicebot.models import ModelError
    from voicebot.replay.run import Replayed
    from voicebot.replay.run import replay as run_replay

    loaded = _load(config, agent)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    results: list[Replayed] = []
    console = Console() if Console().is_terminal else Console(width=160)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bars:
        tasks: dict[Path, TaskID] = {}

        def progress(path: Path, position_s: float, length_s: float) -> None:
            if path not in tasks:
                tasks[path] = bars.add_task(path.name, total=length_s)
            bars.update(tasks[path], completed=position_s)

        def on_done(result: Replayed) -> None:
            if result.path in tasks:
                bars.remove_task(tasks[result.path])
            results.append(result)
            _print_replayed(console, result, speed)

        try:
            clock.run(
                run_replay(audio, loaded, channel=channel, out=out, progress=progress, on_done=on_done),
                virtual=speed is Speed.max,
            )
            if json_file:
                records = (record.as_json() for result in results for record in result.records)
                lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
                json_file.write_text(lines, encoding="utf-8")
        except (ConfigError, EngineError, ModelError, OSError) as error:
            _fail(str(error))
    if any(result.failure for result in results):
        raise typer.Exit(1)


def _print_replayed(console: Console, result: object, speed: Speed) -> None:
    from voicebot.replay.run import Replayed

    assert isinstance(result, Replayed)
    if result.failure:
        stderr.print(f"[red]{escape(result.failure)}[/red]", soft_wrap=True)
    if not result.records:
        if not result.failure:
            console.print(f"{result.path}: no turn: no words were recognized")
        return
    caption = "ms; caller's last word to first sound of the answer, and where it went"
    if speed is Speed.max:
        caption += "; on the virtual clock engines take no time: (in brackets) what they worked"
    table = Table(title=str(result.path), caption=caption, title_justify="left", caption_justify="left")
    for name in ("#", "caller", "answer, as heard", "mouth-to-ear", *STAGES):
        table.add_column(name, justify="left" if name in ("caller", "answer, as heard") else "right")
    for record in result.records:
        stages = record.stages_ms()
        cells = [_ms(stages[stage], record.work.get(stage), speed) for stage in STAGES]
        answer = record.bot_text + (" [interrupted]" if record.interrupted else "")
        if record.error:
            answer += f" [{record.error}]"
        total = record.mouth_to_ear_ms()
        table.add_row(
            str(record.turn), escape(record.user_text), escape(answer), _ms(total, None, speed), *cells
        )
    console.print(table)


def _ms(value: float | None, worked_s: float | None, speed: Speed) -> str:
    text = "-" if value is None else f"{value:.0f}"
    return f"{text} ({worked_s * 1000:.0f})" if speed is Speed.max and worked_s is not None else text


@app.command()
def doctor(config: ConfigOption = None, agent: AgentOption = None) -> None:
    """Check this machine: packages, configuration, models, port, and a self-test of each engine.

    Says what to do about each failure; the exit code is 1 if there is one.
    """
    from voicebot.doctor import run_checks

    if not run_checks(config, agent, Console()):
        raise typer.Exit(1)


def _load(config: Path | None, agent: Path | None) -> Config:
    try:
        loaded = load_config(config, agent)
        loaded.load_agent()
    except ConfigError as error:
        _fail(str(error))
    return loaded


def _log_to_stderr(config: Config) -> None:
    logging.basicConfig(
        level=config.log.level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("aioice", "aiortc", "faster_whisper", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _fail(message: str) -> NoReturn:
    stderr.print(f"[red]voicebot: {escape(message)}[/red]", soft_wrap=True, highlight=False)
    raise typer.Exit(1)

"""The commands under `voicebot bench`: tables for people, `--json FILE` for machines, `--out DIR` charts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NoReturn

import typer
from aiohttp import ClientError
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from voicebot.audio.recordings import RecordingError
from voicebot.bench.report import machine, write_json
from voicebot.config import Config, ConfigError, load_config
from voicebot.engines import EngineError
from voicebot.latency import STAGES
from voicebot.models import ModelError

app = typer.Typer(
    help="Measure: turn-taking, recognition, whole calls. Every command prints a table for people.",
    no_args_is_help=True,
)
stderr = Console(stderr=True)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="Configuration file; $VOICEBOT_CONFIG or configs/embedded.yaml if absent."
    ),
]
RecordingsArgument = Annotated[
    Path | None,
    typer.Argument(
        envvar="VOICEBOT_RECORDINGS",
        help="Folder of recordings with *.jsonl lists: a line per file, with `file`, `speech_end`, `text`.",
    ),
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="File for the same figures, for machines.")]


@app.callback()
def _bench() -> None:
    pass


@app.command()
def turns(
    recordings: RecordingsArgument = None,
    config: ConfigOption = None,
    json_file: JsonOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the chart, turns.svg and turns.png.")] = None,
) -> None:
    """Delay against cut-ins of early endpointing, by eagerness, so that an operator can choose.

    Plays recorded turns to the turn-taking core with its real models. The models' results reach it after
    their median times on this machine, so run it when nothing else does; about ten minutes on two cores.

    A turn is "cut in" when an answer would be heard before its marked end: 0.4 s after the last word, if
    the caller has not gone on by then. "Early" is stricter: any commit before that end, taken back or not.
    After the end, the distance to the commit is the delay. Two baselines run over the same recordings: a
    fixed silence, and Smart Turn with the timing of pipecat.

    RECORDINGS holds endpoint.jsonl, utterances.jsonl or orders.jsonl (a line per turn: {"file": "a.flac",
    "speech_end": 3.2}) or calls.jsonl. For your own callers, mark fifty turns and pick the eagerness whose
    cut-ins you can bear: `voicebot bench turns my-turns/ --json f.json --out charts/`.
    """
    from voicebot.bench.turns import bench_turns, read_turns

    loaded, folder = _settings(config), _folder(recordings)
    try:
        cases, left_out = read_turns(folder)
    except (OSError, ValueError, RecordingError) as error:
        _fail(str(error))
    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as bars:
        bar = bars.add_task("turns", total=len(cases))

        async def work() -> dict[str, Any]:
            async with AsyncExitStack() as stack:
                recognizer, judge = await _hearing(stack, loaded)
                progress: Callable[[int], None] = lambda done: bars.update(bar, completed=done)  # noqa: E731
                return await bench_turns(cases, loaded.turns, recognizer, judge, progress)

        try:
            figures = {**asyncio.run(work()), "left_out": left_out, "machine": machine()}
        except (EngineError, ModelError) as error:
            _fail(str(error))
    _print_turns(figures)
    if json_file:
        write_json(json_file, figures)
    if out:
        from voicebot.bench.charts import turns_chart

        typer.echo(f"wrote {turns_chart(figures, out)}")


@app.command()
def asr(
    recordings: RecordingsArgument = None, config: ConfigOption = None, json_file: JsonOption = None
) -> None:
    """Word error rate and time of recognition: padded tightly (asr.pad_to_s) against the library's 30 s.

    RECORDINGS holds utterances.jsonl (a line per file: {"file": "a.flac", "text": "what is said"}) or
    calls.jsonl, of which the turns with confidence "high" count. Both settings run side by side over the same
    files. Run it when nothing else runs; about a minute on two cores.
    """
    from threadpoolctl import threadpool_limits

    from voicebot.bench.asr import asr_table, bench_asr, read_utterances
    from voicebot.models import load_catalogue, resolve

    loaded, folder = _settings(config), _folder(recordings)
    try:
        utterances, left_out = read_utterances(folder)
        model = resolve(loaded.asr.model, loaded.models.cache, load_catalogue(loaded.models.catalogues))
    except (OSError, ValueError, RecordingError, ModelError) as error:
        _fail(str(error))
    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as bars:
        bar = bars.add_task("utterances", total=len(utterances))
        progress: Callable[[int], None] = lambda done: bars.update(bar, completed=done)  # noqa: E731
        try:
            with threadpool_limits(1, user_api="blas"):  # as in a call, see open_engines
                figures = asyncio.run(bench_asr(utterances, loaded.asr, model, progress))
        except EngineError as error:
            _fail(str(error))
    console = Console() if Console().is_terminal else Console(width=140)
    console.print(asr_table(figures))
    for reason in left_out:
        console.print(f"left out: {reason}", markup=False)
    if json_file:
        write_json(json_file, {**figures, "left_out": left_out, "machine": machine()})


@app.command()
def call(
    say: Annotated[
        list[Path] | None,
        typer.Argument(help="What the caller says, a recording per question; else spoken here."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Measure this server's offer URL alone, as http://host:8080/api/offer.")
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="Questions to each server.")] = 30,
    config: ConfigOption = None,
    json_file: JsonOption = None,
) -> None:
    """Mouth-to-ear and response time over real WebRTC calls, stage by stage.

    Starts the server twice, with speculation and without, and asks the same questions of both in turn; with
    --url it measures a server that runs already, whoever's it is. About ten seconds a turn and server.
    """
    from voicebot.bench.call import ANSWER_TOKENS, bench_call, running_server, synthesize
    from voicebot.tts.piper import open_piper

    loaded = _settings(config)

    async def work(bars: Progress) -> dict[str, Any]:
        from voicebot.models import load_catalogue, resolve

        async with AsyncExitStack() as stack:
            questions = list(say or [])
            if not questions:
                folder = Path(stack.enter_context(TemporaryDirectory()))
                model = loaded.voice(loaded.load_agent())
                path = resolve(model, loaded.models.cache, load_catalogue(loaded.models.catalogues))
                async with open_piper(loaded.tts, path) as voice:
                    questions = await synthesize(voice, folder)
            servers = {"server": url} if url else {}
            if not url:
                for name, on in (("speculation on", "true"), ("speculation off", "false")):
                    settings = {"VOICEBOT_TURNS__SPECULATION": on, "VOICEBOT_LLM__MAX_TOKENS": ANSWER_TOKENS}
                    servers[name] = await stack.enter_async_context(running_server(config, **settings))
            bar = bars.add_task("turns", total=turns)
            return await bench_call(servers, questions, turns, lambda done: bars.update(bar, completed=done))

    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as bars:
        try:
            figures = asyncio.run(work(bars))
        except (OSError, TimeoutError, ClientError, EngineError, ModelError, RecordingError) as error:
            _fail(str(error))
    _print_calls(figures)
    if json_file:
        write_json(json_file, {"servers": figures, "machine": machine()})


def _print_calls(figures: dict[str, Any]) -> None:
    table = Table(title="A caller's wait, milliseconds: p50 / p90 / p95")
    table.add_column("")
    for name in figures:
        table.add_column(name, justify="right")

    def row(name: str, spreads: list[dict[str, Any]]) -> None:
        cells = [" / ".join(str(spread[key]) for key in ("p50", "p90", "p95")) for spread in spreads]
        table.add_row(name, *("-" if "None" in cell else cell for cell in cells))

    results = list(figures.values())
    row("as heard by the caller", [result["heard"] for result in results])
    row("mouth-to-ear, by the record", [result["mouth_to_ear"] for result in results])
    row("response time, by the record", [result["response"] for result in results])
    for stage in STAGES:
        row(f"  {stage}", [result["stages"][stage] for result in results])
    table.add_row("turns (unanswered)", *(f"{r['turns']} ({r['unanswered']})" for r in results))
    spent = (f"{r['speculation']['started']} ({r['speculation']['dropped']})" for r in results)
    table.add_row("answers begun (dropped)", *spent)
    Console().print(table)


async def _hearing(stack: AsyncExitStack, config: Config) -> Any:
    """The configured recognizer and turn model, open as long as `stack`."""
    from threadpoolctl import threadpool_limits

    from voicebot.asr.faster_whisper import open_whisper
    from voicebot.models import load_catalogue, resolve
    from voicebot.turns.smart_turn import open_smart_turn

    catalogue, cache = load_catalogue(config.models.catalogues), config.models.cache
    stack.enter_context(threadpool_limits(1, user_api="blas"))  # as in a call, see open_engines
    recognizer = await stack.enter_async_context(
        open_whisper(config.asr, resolve(config.asr.model, cache, catalogue))
    )
    if config.turns.model is None:
        _fail("turns.model is null: this benchmark needs a model of turn completeness, as smart-turn-v3.2")
    judge = await stack.enter_async_context(open_smart_turn(resolve(config.turns.model, cache, catalogue)))
    return recognizer, judge


def _print_turns(figures: dict[str, Any]) -> None:
    table = Table(title="Endpointing: delay after the end of the turn, against turns cut in")
    for name in ("setting", "turns", "cut in", "95 % interval", "early", "missed", "p50 ms", "p90 ms"):
        table.add_column(name, justify="left" if name == "setting" else "right")

    def row(name: str, result: dict[str, Any], style: str | None = None) -> None:
        low, high = result["cut_in_95"]
        rate = f"{result['cut_in']} ({result['cut_in_rate']:.1%})"
        early = f"{result['early']} ({result['early_rate']:.1%})"
        counts = (str(result["turns"]), rate, f"{low:.1%} - {high:.1%}", early, str(result["missed"]))
        table.add_row(name, *counts, str(result["delay_p50_ms"]), str(result["delay_p90_ms"]), style=style)

    for result in figures["curve"]:
        mine = result["eagerness"] == figures["eagerness"]
        name = f"eagerness {result['eagerness']:g}" + (" (configured)" if mine else "")
        row(name, result, "bold" if mine else None)
    table.add_section()
    for name, result in figures["baselines"].items():
        row(name, result)
    table.add_section()
    for name, result in figures["by_kind"].items():
        row(f"configured: {name}", result)
    console = Console() if Console().is_terminal else Console(width=120)
    console.print(table)
    console.print(
        "Assumed: a model answers after its median time here, recognizer "
        f"{figures['asr_ms']} ms, Smart Turn {figures['judge_ms']} ms."
    )
    for cut in figures["cut_in"]:
        sounds = "/".join(f"{value:.2f}" for value in cut["sounds"])
        console.print(
            f"cut in: {cut['turn']} at {cut['commit_s']} s, its end is at {cut['speech_end_s']:g} s; "
            f"the pause was {cut['pause_s'] or '?'} s, sounded {sounds}, read {(cut['words'] or '')[-40:]!r}",
            markup=False,
        )
    for reason in figures["left_out"]:
        console.print(f"left out: {reason}", markup=False)


def _settings(config: Path | None) -> Config:
    try:
        return load_config(config)
    except ConfigError as error:
        _fail(str(error))


def _folder(recordings: Path | None) -> Path:
    if recordings is None:
        _fail("no recordings: name a folder, or set VOICEBOT_RECORDINGS to one")
    if not os.path.isdir(recordings):
        _fail(f"{recordings}: no such folder; name the folder that holds the *.jsonl lists")
    return recordings


def _fail(message: str) -> NoReturn:
    stderr.print(f"[red]error:[/] {message}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)

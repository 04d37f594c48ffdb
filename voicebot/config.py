"""The configuration: one typed tree, read from a YAML file, overridden by `VOICEBOT_*` variables.

`VOICEBOT_SERVER__PORT=9000` overrides `server.port`. A wrong field, type, value or file raises
`ConfigError`, whose message names the field's path, the value given and what is allowed.
Paths inside a YAML file are relative to that file.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

import yaml
from platformdirs import user_cache_dir
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

ENV_PREFIX = "VOICEBOT_"
# Read elsewhere, not fields of the tree: the configuration file itself, and the recordings for tests.
ENV_RESERVED = {"VOICEBOT_CONFIG", "VOICEBOT_RECORDINGS"}


class ConfigError(Exception):
    """The configuration cannot be used; the message says which field, what it was, and the mend."""


_M = TypeVar("_M", bound=BaseModel)


def share_dir(name: str) -> Path:
    """The folder `web` or `configs`: in the source tree beside the package, in a wheel inside it."""
    package = Path(__file__).parent
    inside = package / "share" / name
    return inside if inside.is_dir() else package.parent / name


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class IceServer(_Section):
    """A STUN or TURN server, offered to browsers and used by this server too."""

    urls: list[str]
    username: str | None = None
    credential: str | None = None


class ServerConfig(_Section):
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    tls_cert: Path | None = None
    """PEM certificate chain. Browsers give a page the microphone only over https or on localhost."""
    tls_key: Path | None = None
    max_calls: int = Field(4, ge=1)
    """Calls at once; one more is refused with 503 before it costs the others anything."""
    ice_servers: list[IceServer] = []
    connect_timeout_s: float = Field(15.0, gt=0)
    """An offer whose media has not connected by then is dropped and its place freed."""
    max_offer_bytes: int = Field(65536, ge=1024)
    drain_s: float = Field(5.0, ge=0)
    """On SIGTERM, how long calls may finish before they are ended."""

    @model_validator(mode="after")
    def _both_tls(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together: set both or neither")
        return self


class ModelsConfig(_Section):
    cache: Path = Field(default_factory=lambda: Path(user_cache_dir("voicebot")) / "models")
    catalogues: list[Path] = []
    """Catalogue files of your own, beside the built-in one."""


class WhisperConfig(_Section):
    engine: Literal["faster_whisper"] = "faster_whisper"
    model: str = "whisper-tiny.en"
    """A catalogue id, or the path of a CTranslate2 Whisper folder."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    compute_type: str = "int8"
    threads: int = Field(1, ge=1)
    """For one pass. Whisper's decoder is slower on two (tiny.en: 75 ms on one, 108 on two)."""
    workers: int = Field(2, ge=1)
    """Passes at once, over all calls; they share the weights."""
    language: str = "en"
    """Pinned per server: detection on a short answer picks other languages."""
    beam_size: int = Field(1, ge=1)
    pad_to_s: float = Field(10.0, ge=1, le=30)
    """The encoder is fed this much audio (or the speech + 1 s) instead of the library's 30 s."""
    timeout_s: float = Field(15.0, gt=0)


class LlamaCppConfig(_Section):
    engine: Literal["llama_cpp"] = "llama_cpp"
    model: str = "smollm2-135m-instruct"
    """A catalogue id, or the path of a GGUF file."""
    requantize: Literal["Q8_0"] | None = None
    """Other weights are turned into this once, where llama.cpp is faster with it (Q4_1 on x86); kept in the
    model cache."""
    threads: int = Field(2, ge=1)
    parallel: int = Field(4, ge=1)
    """Requests at once; each has its own context and keeps its own cached system prompt."""
    context_tokens: int = Field(2048, ge=256)
    """Per request."""
    gpu_layers: int = Field(0, ge=-1)
    max_tokens: int = Field(60, ge=1)
    temperature: float = Field(0.0, ge=0)
    seed: int = 1
    first_token_timeout_s: float = Field(10.0, gt=0)
    token_timeout_s: float = Field(5.0, gt=0)


class PiperConfig(_Section):
    engine: Literal["piper"] = "piper"
    model: str = "en_US-joe-medium"
    """A catalogue id, or the path of a voice's .onnx file (its .onnx.json beside it)."""
    threads: int = Field(2, ge=1)
    length_scale: float = Field(1.0, gt=0.2, lt=5)
    """Above 1 speaks slower."""
    seed: int = 1
    timeout_s: float = Field(15.0, gt=0)


class ChunkingConfig(_Section):
    """Lengths in characters; see voicebot/chunking.py for the rules."""

    first_min_chars: int = Field(12, ge=1)
    first_max_chars: int = Field(32, ge=8)
    min_chars: int = Field(40, ge=1)
    max_chars: int = Field(220, ge=20)
    idle_ms: int = Field(150, ge=0)
    """A finished sentence is spoken when no token has come for this long."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.first_min_chars > self.first_max_chars or self.min_chars > self.max_chars:
            raise ValueError("a minimum is above its maximum")
        return self


class TurnsConfig(_Section):
    vad_start: float = Field(0.5, gt=0, lt=1)
    """Speech probability at which a window counts as speech."""
    vad_stop: float = Field(0.35, gt=0, lt=1)
    """Below this a window counts as silence; between the two the last decision holds."""
    min_speech_ms: int = Field(96, ge=32)
    """Shorter sounds are not speech, so that a click starts nothing; "no" is about 150 ms."""
    dip_ms: int = Field(96, ge=32)
    """Sound over the bot, taken for speech, that silences it at once; when no more than that follows, the
    bot goes on where it was. At `barge_in_ms` or above it there are no such dips."""
    barge_in_ms: int = Field(256, ge=32)
    """Speech over the bot that stops it. Shorter sounds over the bot are dropped."""
    backchannels: frozenset[str] = frozenset(
        "uhhuh uh huh mhm mhmm mmhmm mm mmm hm hmm aha ah oh yeah yep ok okay right sure cool".split()
    )
    """A caller who says no more than these over the bot is listening: it goes on after a short dip. Lower
    case, no hyphens. "Yes" and "no" may answer a question before its end, and are not among them."""
    echo_cancellation: bool = True
    """Takes the bot's own voice out of what the caller's loudspeaker or line sends back. A caller who sends
    no echo is heard as without it: see voicebot/audio/echo.py for the numbers."""
    model: str | None = "smart-turn-v3.2"
    """Hears how complete a turn sounds: a catalogue id or a path; null for a fixed silence."""
    speculation: bool = True
    """Work on an answer begins at the first hint of a pause, and is dropped if the caller goes on."""
    answers_at_once: int = Field(1, ge=0)
    """Over all calls: while so many answers are in the making no speculative one is begun, and a speculative
    one is shed when a caller who waits needs its place. Raise it with what the language model can serve."""
    pause_ms: int = Field(64, ge=32)
    """Silence that is such a hint."""
    endpoint_min_ms: int = Field(288, ge=64)
    """Silence after which a turn that sounds complete is over."""
    endpoint_max_ms: int = Field(1600, ge=64)
    """Silence after which a turn that sounds unfinished is over."""
    endpoint_silence_ms: int = Field(608, ge=64)
    """Silence after which a turn is over of which nothing is known: no model, or not yet heard."""
    eagerness: float = Field(0.5, ge=0, le=1)
    """Higher answers sooner and cuts in more often."""
    pre_roll_ms: int = Field(320, ge=0)
    """Audio kept from before speech was noticed, so that first words are not clipped."""
    max_turn_s: float = Field(60.0, gt=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.vad_stop > self.vad_start:
            raise ValueError("vad_stop is above vad_start")
        if self.endpoint_min_ms > self.endpoint_max_ms:
            raise ValueError("endpoint_min_ms is above endpoint_max_ms")
        return self


class CallConfig(_Section):
    idle_question_s: float = Field(12.0, ge=0)
    """Silence of both sides before the agent's question; 0 never asks and never hangs up for silence."""
    idle_hangup_s: float = Field(10.0, gt=0)
    """Silence after the question before the call is ended."""
    max_call_s: float = Field(3600.0, gt=0)
    max_engine_errors: int = Field(2, ge=1)
    """Failed answers in a row before the call is ended with the apology."""
    history_max_chars: int = Field(4000, ge=200)
    """Of the conversation in the prompt; about four characters make a token."""
    lookahead_s: float = Field(4.0, gt=0)
    """Speech made ahead of what is playing; more would be thrown away at a barge-in."""


Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class StageBudget(_Section):
    """Milliseconds of the response budget per stage, from commit to first audible packet."""

    asr: Share = 60
    llm: Share = 60
    chunking: Share = 20
    tts: Share = 50
    egress: Share = 10


class LatencyConfig(_Section):
    budget_ms: float = Field(200.0, gt=0, allow_inf_nan=False)
    stages: StageBudget = StageBudget()
    mouth_to_ear_objective_ms: float = Field(700.0, gt=0)

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        total = sum(self.stages.model_dump().values())
        if total > self.budget_ms:
            raise ValueError(f"the stages add up to {total:g} ms, above budget_ms {self.budget_ms:g}")
        return self


class AgentConfig(_Section):
    """Who answers: a file of its own, so that one server configuration serves many agents."""

    name: str
    system_prompt: str = Field(min_length=1)
    greeting: str = ""
    greeting_interruptible: bool = True
    voice: str | None = None
    """A catalogue id or path; the configuration's `tts.model` when absent."""
    idle_question: str = "Are you still there?"
    goodbye: str = "I can't hear you, so I will hang up now. Goodbye."
    apology: str = "I'm sorry, something went wrong on my side."
    apology_hangup: str = "I'm sorry, I have a technical problem and must end this call. Please call again."
    openings: list[str] = [
        "I'm sorry", "I'm sorry,", "Sorry,", "Yes,", "Yes", "No,", "Sure,", "Of course,", "Of course",
        "Certainly,", "Absolutely,", "Okay,", "Thank you", "Thank you,", "Hello!",
    ]  # fmt: skip
    """Short first words, kept as audio: an answer that begins with one is heard while the rest is made."""
    lexicon: dict[str, str] = {}
    """Whole words as written -> as spoken."""


class LogConfig(_Section):
    level: Literal["debug", "info", "warning", "error"] = "info"


class Config(BaseSettings):
    """The whole tree. `load_config` is the way to get one."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        env_parse_none_str="null",
    )

    agent: Path
    """The agent's file."""
    server: ServerConfig = ServerConfig()
    models: ModelsConfig = Field(default_factory=ModelsConfig)
    asr: WhisperConfig = WhisperConfig()
    llm: LlamaCppConfig = LlamaCppConfig()
    tts: PiperConfig = PiperConfig()
    chunking: ChunkingConfig = ChunkingConfig()
    turns: TurnsConfig = TurnsConfig()
    call: CallConfig = CallConfig()
    latency: LatencyConfig = LatencyConfig()
    log: LogConfig = LogConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings  # the environment wins over the file

    def load_agent(self) -> AgentConfig:
        """Reads the agent's file; raises ConfigError."""
        return _validated(AgentConfig, _read_yaml(self.agent, "agent"), str(self.agent))

    def voice(self, agent: AgentConfig) -> str:
        return agent.voice or self.tts.model

    def model_ids(self) -> list[str]:
        """Catalogue ids (not paths) of the models that this configuration and its agent need."""
        refs = [self.asr.model, self.llm.model, self.voice(self.load_agent()), self.turns.model]
        return [ref for ref in refs if ref is not None and os.sep not in ref and not Path(ref).exists()]


def default_config_path() -> Path:
    """`$VOICEBOT_CONFIG`, else the embedded default."""
    chosen = os.environ.get("VOICEBOT_CONFIG")
    return Path(chosen) if chosen else share_dir("configs") / "embedded.yaml"


def load_config(path: Path | None = None, agent: Path | None = None) -> Config:
    """Reads and validates the configuration; `agent` overrides its agent file. Raises ConfigError."""
    path = path or default_config_path()
    data = _read_yaml(path, "config")
    known = set(Config.model_fields)
    for variable in os.environ:
        if not variable.startswith(ENV_PREFIX) or variable in ENV_RESERVED:
            continue
        section = variable.removeprefix(ENV_PREFIX).split("__")[0].lower()
        if section not in known:
            raise ConfigError(
                f"environment: {variable} is not a setting: '{section}' is unknown{_near(section, known)}"
            )
    _anchor_paths(data, path.parent)
    if agent is not None:
        data.setdefault("agent", agent)
    config = _validated(Config, data, str(path))
    # The command line wins over the environment, which wins over the file.
    return config if agent is None else config.model_copy(update={"agent": agent})


def _read_yaml(path: Path, what: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        siblings = sorted(p.name for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        there = f" (there: {', '.join(siblings)})" if siblings else ""
        raise ConfigError(f"{what}: no file {path}{there}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected fields like 'agent: agents/hotel.yaml', got {data!r}")
    if wrong := [key for key in data if not isinstance(key, str)]:
        raise ConfigError(f"{path}: the field {wrong[0]!r} is not text; quote it if it is meant")
    return data


def _anchor_paths(data: dict[str, Any], folder: Path) -> None:
    """Makes the file's relative paths relative to the file."""

    def anchored(value: object) -> object:
        return str(folder / value) if isinstance(value, str) else value

    if "agent" in data:
        data["agent"] = anchored(data["agent"])
    for section, field in (("server", "tls_cert"), ("server", "tls_key"), ("models", "cache")):
        part = data.get(section)
        if isinstance(part, dict) and part.get(field) is not None:
            part[field] = anchored(part[field])
    models = data.get("models")
    if isinstance(models, dict) and isinstance(models.get("catalogues"), list):
        models["catalogues"] = [anchored(item) for item in models["catalogues"]]


def _validated(model: type[_M], data: dict[str, Any], where: str) -> _M:
    try:
        return model(**data)
    except SettingsError as error:
        given = [name for name in os.environ if name.startswith(ENV_PREFIX) and name not in ENV_RESERVED]
        raise ConfigError(
            f"environment ({', '.join(given)}): {error}; lists and sections are written as JSON"
        ) from None
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(model, item, where) for item in error.errors())) from None


def _explain(model: type[BaseModel], item: Any, where: str) -> str:
    loc = [part for part in item["loc"] if isinstance(part, (str, int))]
    path = ".".join(str(part) for part in loc)
    variable = ENV_PREFIX + "__".join(str(part) for part in loc).upper()
    if variable in os.environ:
        where = f"environment variable {variable}"
    if item["type"] == "extra_forbidden":
        fields = _fields_at(model, loc[:-1])
        allowed = f"; allowed here: {', '.join(sorted(fields))}" if fields else ""
        return f"{where}: {path}: no such field{_near(str(loc[-1]), fields)}{allowed}"
    if item["type"] == "missing":
        return f"{where}: {path}: required, but not set"
    message = item["msg"].removeprefix("Value error, ")
    given = "" if isinstance(item["input"], (dict, BaseModel)) else f" (given: {item['input']!r})"
    return f"{where}: {path or 'the file'}: {message}{given}"


def _fields_at(model: type[BaseModel], loc: list[str | int]) -> set[str]:
    current: Any = model
    for part in loc:
        if isinstance(part, int):
            continue
        field = getattr(current, "model_fields", {}).get(part)
        current = _model_in(field.annotation) if field else None
    return set(getattr(current, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    if get_origin(annotation) in (None, Annotated):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)


def _near(name: str, known: set[str]) -> str:
    match = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean '{match[0]}'?)" if match else ""

"""The configuration: every kind of error names the path, the value and what is allowed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from voicebot.config import ConfigError, default_config_path, load_config, share_dir

ROOT = Path(__file__).parent.parent

AGENT = "name: Test\nsystem_prompt: You are a test.\n"

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("VOICEBOT_"):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes main.yaml, with an agent beside it, and gives its path."""
    (tmp_path / "agent.yaml").write_text(AGENT)

    def put(text: str) -> Path:
        path = tmp_path / "main.yaml"
        path.write_text(text)
        return path

    return put


def refused(path: Path | None, agent: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, agent)
    return str(caught.value)


# What is in the repository.


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_configuration_of_the_repository_loads(path: Path) -> None:
    config = load_config(path)
    assert config.agent.is_file()
    assert config.load_agent().system_prompt
    assert config.model_ids()


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "agents").glob("*.yaml")), ids=lambda p: p.name)
def test_every_agent_of_the_repository_loads(path: Path) -> None:
    agent = load_config(agent=path).load_agent()
    assert agent.name and agent.greeting
    assert "\n" not in agent.system_prompt.strip()


def test_the_default_is_the_embedded_configuration(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    assert default_config_path() == share_dir("configs") / "embedded.yaml"
    assert load_config().llm.engine == "llama_cpp"
    monkeypatch.setenv("VOICEBOT_CONFIG", str(write("agent: agent.yaml\nserver: {port: 1234}\n")))
    assert load_config().server.port == 1234


# Errors of the file.


def test_an_unknown_field_names_its_path_a_near_one_and_all_that_are_allowed(write: Write) -> None:
    path = write("agent: agent.yaml\nserver: {prot: 8080}\n")
    message = refused(path)
    assert message.startswith(f"{path}: server.prot: no such field (did you mean 'port'?)")
    assert "allowed here: connect_timeout_s, drain_s, host" in message


def test_an_unknown_field_with_nothing_near(write: Write) -> None:
    message = refused(write("agent: agent.yaml\nserver: {zzz: 1}\n"))
    assert "server.zzz: no such field; allowed here: " in message
    assert "did you mean" not in message


def test_an_unknown_section(write: Write) -> None:
    message = refused(write("agent: agent.yaml\nturn: {vad_start: 0.5}\n"))
    assert "turn: no such field (did you mean 'turns'?)" in message
    assert "allowed here: agent, asr, call, chunking" in message


def test_an_unknown_field_in_a_list_of_sections(write: Write) -> None:
    message = refused(write("agent: agent.yaml\nserver: {ice_servers: [{urls: ['stun:x'], user: me}]}\n"))
    assert "server.ice_servers.0.user: no such field (did you mean 'username'?)" in message
    assert "allowed here: credential, urls, username" in message


def test_several_errors_are_told_at_once(write: Write) -> None:
    message = refused(write("agent: agent.yaml\nserver: {prot: 1, host: 5}\nllm: {threads: none}\n"))
    assert len(message.splitlines()) == 3
    assert all(path in message for path in ("server.prot", "server.host", "llm.threads"))


@pytest.mark.parametrize(
    ("text", "path", "given", "allowed"),
    [
        ("server: {port: http}", "server.port", "'http'", "integer"),
        ("server: {port: 70000}", "server.port", "70000", "65535"),
        ("server: {port: 1.5}", "server.port", "1.5", "integer"),
        ("server: {ice_servers: stun}", "server.ice_servers", "'stun'", "list"),
        ("server: none", "server", "'none'", "dictionary"),
        ("turns: {vad_start: 1.5}", "turns.vad_start", "1.5", "less than 1"),
        ("turns: {vad_start: .nan}", "turns.vad_start", "nan", "less than 1"),
        ("turns: {min_speech_ms: 5}", "turns.min_speech_ms", "5", "greater than or equal to 32"),
        ("log: {level: loud}", "log.level", "'loud'", "'debug', 'info', 'warning' or 'error'"),
        ("asr: {engine: whisper_cpp}", "asr.engine", "'whisper_cpp'", "'faster_whisper'"),
        ("llm: {engine: vlm}", "llm.engine", "'vlm'", "'llama_cpp'"),
    ],
)  # fmt: skip
def test_a_wrong_value_names_path_value_and_what_is_allowed(
    write: Write, text: str, path: str, given: str, allowed: str
) -> None:
    message = refused(write(f"agent: agent.yaml\n{text}\n"))
    assert f": {path}: " in message
    assert f"(given: {given})" in message
    assert allowed in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("text", ["stages: {asr: -5}", "stages: {asr: .nan}", "budget_ms: .inf"])
def test_a_latency_budget_that_cannot_be_kept_or_written_as_json(write: Write, text: str) -> None:
    assert "latency" in refused(write(f"agent: agent.yaml\nlatency: {{{text}}}\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("turns: {vad_start: 0.3, vad_stop: 0.4}", "turns: vad_stop is above vad_start"),
        ("chunking: {first_min_chars: 50, first_max_chars: 40}", "chunking: a minimum is above its maximum"),
        ("chunking: {min_chars: 300}", "chunking: a minimum is above its maximum"),
        ("server: {tls_cert: a.pem}", "server: tls_cert and tls_key go together"),
        ("latency: {budget_ms: 100}", "latency: the stages add up to 200 ms, above budget_ms 100"),
        ("latency: {stages: {asr: 61}}", "latency: the stages add up to 201 ms, above budget_ms 200"),
    ],
)
def test_rules_across_fields(write: Write, text: str, message: str) -> None:
    assert f"main.yaml: {message}" in refused(write(f"agent: agent.yaml\n{text}\n"))


def test_the_agent_is_required(write: Write) -> None:
    assert "main.yaml: agent: required, but not set" in refused(write("server: {port: 1}\n"))


def test_a_missing_file_lists_what_is_there(write: Write, tmp_path: Path) -> None:
    write("agent: agent.yaml\n")
    message = refused(tmp_path / "mian.yaml")
    assert f"config: no file {tmp_path / 'mian.yaml'}" in message
    assert "(there: agent.yaml, main.yaml)" in message
    assert "there:" not in refused(tmp_path / "nowhere" / "x.yaml")


@pytest.mark.parametrize("text", ["a: [1\n", "a: b: c\n", "\tx: 1\n", "a: !!python/object:os.system x\n"])
def test_not_yaml(write: Write, text: str) -> None:
    message = refused(write(text))
    assert "main.yaml: not YAML: " in message
    assert "line" in message


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "hello\n", "42\n"])
def test_yaml_that_is_no_mapping(write: Write, text: str) -> None:
    assert "main.yaml: expected fields like 'agent: agents/hotel.yaml', got " in refused(write(text))


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "main.yaml"
    path.write_bytes(b"\xff\xfe\x00agent")
    assert f"cannot read {path}" in refused(path)
    assert f"cannot read {tmp_path}" in refused(tmp_path)


@pytest.mark.parametrize("text", ["1: 2\n", "on: 2\n"])
def test_a_key_that_is_no_text(write: Write, text: str) -> None:
    refused(write(f"agent: agent.yaml\n{text}"))


def test_a_key_that_is_no_text_in_a_section(write: Write) -> None:
    assert "server" in refused(write("agent: agent.yaml\nserver: {1: 2}\n"))


# The environment.


def test_the_environment_wins_over_the_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("agent: agent.yaml\nserver: {port: 1000, host: 10.0.0.1}\n")
    monkeypatch.setenv("VOICEBOT_SERVER__PORT", "2000")
    monkeypatch.setenv("VOICEBOT_LLM__THREADS", "7")
    config = load_config(path)
    assert (config.server.port, config.server.host, config.llm.threads) == (2000, "10.0.0.1", 7)


def test_an_empty_variable_changes_nothing(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICEBOT_SERVER__PORT", "")
    assert load_config(write("agent: agent.yaml\nserver: {port: 1000}\n")).server.port == 1000


def test_a_wrong_variable_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("agent: agent.yaml\n")
    monkeypatch.setenv("VOICEBOT_SERVER__PORT", "http")
    message = refused(path)
    assert message.startswith("environment variable VOICEBOT_SERVER__PORT: server.port: ")
    assert "(given: 'http')" in message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("VOICEBOT_SERVRE__PORT", "VOICEBOT_SERVRE__PORT is not a setting: 'servre' is unknown (did you mean 'server'?)"),
        ("VOICEBOT_PORT", "VOICEBOT_PORT is not a setting: 'port' is unknown"),
        ("VOICEBOT_SERVER__PROT", "VOICEBOT_SERVER__PROT: server.prot: no such field (did you mean 'port'?)"),
        ("VOICEBOT_SERVER_PORT", "VOICEBOT_SERVER_PORT is not a setting"),
    ],
)  # fmt: skip
def test_a_wrong_variable_name_is_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setenv(name, "1")
    assert message in refused(write("agent: agent.yaml\n"))


def test_reserved_variables_are_no_settings(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICEBOT_RECORDINGS", "/somewhere")
    monkeypatch.setenv("VOICEBOT_CONFIG", "/elsewhere.yaml")
    load_config(write("agent: agent.yaml\n"))


@pytest.mark.parametrize(
    "name", ["VOICEBOT_SERVER", "VOICEBOT_SERVER__ICE_SERVERS", "VOICEBOT_MODELS__CATALOGUES"]
)
def test_a_variable_that_is_not_the_json_it_must_be(
    write: Write, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "mine.yaml")
    assert name in refused(write("agent: agent.yaml\n"))


def test_the_agent_of_the_command_line_wins(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write("agent: agent.yaml\n")
    other = tmp_path / "other.yaml"
    other.write_text(AGENT.replace("Test", "Other"))
    third = tmp_path / "third.yaml"
    third.write_text(AGENT.replace("Test", "Third"))
    monkeypatch.setenv("VOICEBOT_AGENT", str(other))
    assert load_config(path).load_agent().name == "Other"
    assert load_config(path, agent=third).load_agent().name == "Third"


def test_loading_leaves_the_environment_alone(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VOICEBOT_AGENT", "mine.yaml")
    load_config(write("agent: agent.yaml\n"), agent=tmp_path / "agent.yaml")
    assert os.environ.get("VOICEBOT_AGENT") == "mine.yaml"


# The agent's file.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: X\n", "system_prompt: required, but not set"),
        ("name: X\nsystem_prompt: ''\n", "system_prompt: "),
        (
            AGENT + "greetings: hi\n",
            "greetings: no such field (did you mean 'greeting'?); allowed here: apology",
        ),
        (AGENT + "lexicon: [a]\n", "lexicon: "),
        (AGENT + "greeting: 5\n", "greeting: "),
        ("- a\n", "expected fields"),
        ("a: [\n", "not YAML"),
    ],
)
def test_errors_of_the_agent_name_its_file(write: Write, tmp_path: Path, text: str, message: str) -> None:
    config = load_config(write("agent: agent.yaml\n"))
    (tmp_path / "agent.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load_agent()
    assert str(tmp_path / "agent.yaml") in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_agent_lists_what_is_there(write: Write, tmp_path: Path) -> None:
    config = load_config(write("agent: agnet.yaml\n"))
    with pytest.raises(ConfigError, match=r"agent: no file .*agnet\.yaml \(there: agent\.yaml, main\.yaml\)"):
        config.load_agent()


def test_the_agent_chooses_the_voice(write: Write, tmp_path: Path) -> None:
    config = load_config(write("agent: agent.yaml\n"))
    assert config.voice(config.load_agent()) == config.tts.model
    (tmp_path / "agent.yaml").write_text(AGENT + "voice: other-voice\n")
    assert config.voice(config.load_agent()) == "other-voice"
    assert "other-voice" in config.model_ids()


# Paths.


def test_relative_paths_are_relative_to_the_file(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        "agent: agent.yaml\n"
        "server: {tls_cert: tls/cert.pem, tls_key: /etc/key.pem}\n"
        "models: {cache: models, catalogues: [more.yaml, /abs.yaml]}\n"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for given in (path, Path("..") / "main.yaml"):
        config = load_config(given)
        assert config.agent.resolve() == tmp_path / "agent.yaml"
        assert config.load_agent().name == "Test"
        assert config.server.tls_cert is not None
        assert config.server.tls_cert.resolve() == tmp_path / "tls" / "cert.pem"
        assert config.server.tls_key == Path("/etc/key.pem")
        assert config.models.cache.resolve() == tmp_path / "models"
        assert [p.resolve() for p in config.models.catalogues] == [tmp_path / "more.yaml", Path("/abs.yaml")]


def test_a_configuration_cannot_be_changed(write: Write) -> None:
    config = load_config(write("agent: agent.yaml\n"))
    with pytest.raises(ValueError, match="frozen"):
        config.server.port = 1  # type: ignore[misc]


def test_null_in_the_environment_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICEBOT_TURNS__MODEL", "null")
    assert load_config().turns.model is None

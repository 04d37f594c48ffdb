"""The real embedded engines: streaming, closing, errors, and what they understand."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import jiwer
import numpy as np
import pytest

from voicebot import clock
from voicebot.asr.faster_whisper import cut_loop, open_whisper, split_long
from voicebot.audio.frames import SPEECH_RATE, Pcm
from voicebot.audio.recordings import read_recording
from voicebot.audio.resample import resampled
from voicebot.config import LlamaCppConfig, PiperConfig, WhisperConfig
from voicebot.engines import EngineDead, EngineError, Message
from voicebot.llm.llama_cpp import open_llama
from voicebot.llm.requantize import requantized
from voicebot.models import file_in
from voicebot.tts.piper import open_piper, trim

models = pytest.mark.models
PROMPT = [
    Message("system", "You are the phone assistant of a hotel."),
    Message("user", "Tell me about the pool."),
]


@models
@pytest.mark.parametrize("virtual", [False, True], ids=["real clock", "virtual clock"])
def test_language_model_streams_and_stops(model: Callable[[str], Path], virtual: bool) -> None:
    """Deltas join to the whole answer; closing early frees the engine for the next request."""

    async def main() -> None:
        config = LlamaCppConfig(parallel=1, max_tokens=400)
        async with open_llama(config, model(config.model), PROMPT) as llm:
            async with aclosing(llm.stream(PROMPT)) as deltas:
                first = [await anext(deltas) for _ in range(5)]
            # One slot only: the next answer can come only when the closed request has left it.
            short = await asyncio.wait_for(first_words(llm.stream(PROMPT), 5), 60)
            assert short == first  # temperature 0
            with pytest.raises(EngineError, match="exceed"):
                await first_words(llm.stream([Message("user", "word " * 5000)]), 1)
            assert await first_words(llm.stream(PROMPT), 5) == first

    async def first_words(stream: object, count: int) -> list[str]:
        async with aclosing(stream) as deltas:  # type: ignore[type-var]
            return [await anext(deltas) for _ in range(count)]

    clock.run(main(), virtual=virtual)


@models
def test_many_cancelled_requests_leave_the_engine_alive(model: Callable[[str], Path]) -> None:
    async def main() -> None:
        config = LlamaCppConfig(parallel=2, max_tokens=30)
        async with open_llama(config, model(config.model), PROMPT, 2) as llm:
            for after in range(40):  # from before the first token to around the last one
                async with aclosing(llm.stream(PROMPT)) as deltas:
                    for _ in range(after):
                        if await anext(deltas, None) is None:
                            break
            assert len([delta async for delta in llm.stream(PROMPT)]) > 5

    clock.run(main())


@models
def test_voice_streams_sentence_by_sentence_and_stops(model: Callable[[str], Path]) -> None:
    async def main() -> None:
        async with open_piper(PiperConfig(), model("en_US-joe-medium")) as voice:
            parts = [part async for part in voice.stream("Breakfast is at seven. Parking is free.")]
            assert len(parts) == 2
            assert all(part.pcm.dtype == np.int16 for part in parts)
            assert all(0.3 < len(part.pcm) / voice.rate < 5 for part in parts)
            again = "and then we go on and on " * 40
            task = asyncio.ensure_future(anext(voice.stream(again)))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # The one worker is free again long before those 17 s of speech would have been made.
            short = [part async for part in voice.stream("Sure.")]
            assert len(short) == 1

    clock.run(main())


@models
def test_voice_is_the_same_for_the_same_seed(model: Callable[[str], Path]) -> None:
    async def main() -> list[Pcm]:
        async with open_piper(PiperConfig(), model("en_US-joe-medium")) as voice:
            return [part.pcm async for part in voice.stream("The pool opens at eight. Dogs are welcome.")]

    first, second = clock.run(main()), clock.run(main(), virtual=True)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@models
@pytest.mark.parametrize("timed", [True, False], ids=["durations", "a graph without"])
def test_voice_tells_where_words_end(
    model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, timed: bool
) -> None:
    """After each comma the voice pauses: the word before it has ended where the sound falls. Between words
    of very different length a guess is far off: the test's own check, on a graph without durations."""
    if not timed:
        monkeypatch.setattr("voicebot.tts.piper.with_durations", lambda _: None)
    text = "No, absolutely, I, Constantinople, yes, extraordinary, at, breakfast. Dogs are out of the house."

    async def main() -> None:
        async with open_piper(PiperConfig(), model("en_US-joe-medium")) as voice:
            first, second = [part async for part in voice.stream(text)]
        assert (len(first.ends), len(second.ends)) == (8, 6)
        for part in (first, second):
            assert [*part.ends] == sorted(part.ends) and part.ends[0] > 0.03
            assert part.ends[-1] <= len(part.pcm) / voice.rate
        falls = pauses(first.pcm, voice.rate)
        assert len(falls) == 7
        late = [end - fall for end, fall in zip(first.ends[:7], falls, strict=True)]
        assert all(-0.03 < by < 0.12 for by in late) == timed, late

    def pauses(pcm: Pcm, rate: int) -> list[float]:
        """Where at least 0.15 s of quiet begin, in seconds; not the last word's end."""
        step = rate // 100
        level = np.sqrt((pcm[: len(pcm) // step * step].reshape(-1, step).astype(float) ** 2).mean(1))
        quiet = "".join(".#"[bool(loud)] for loud in level > 300)
        return [match.start() / 100 for match in re.finditer(r"\.{15,}(?=#)", quiet)]

    clock.run(main())


@models
def test_words_cut_where_they_end_are_understood(model: Callable[[str], Path]) -> None:
    """The recognizer hears the words up to the cut; espeak runs "on the", "of the", "in the" together."""
    text = "The pool is on the second floor of the hotel and it is open early in the morning except Sunday."
    words = plain(text).split()

    async def main() -> None:
        config = WhisperConfig()
        async with (
            open_piper(PiperConfig(), model("en_US-joe-medium")) as voice,
            open_whisper(config, model(config.model)) as recognizer,
        ):
            [speech] = [part async for part in voice.stream(text)]
            assert len(speech.ends) == len(words)
            for count in (7, 10, 15, 18, 19):
                cut = speech.pcm[: int(speech.ends[count - 1] * voice.rate)]
                end = np.zeros(SPEECH_RATE // 4, np.int16)
                heard_text = await recognizer.transcribe(
                    np.concatenate([resampled(cut, voice.rate, SPEECH_RATE), end])
                )
                assert plain(heard_text).split()[-1] == words[count - 1], heard_text

    clock.run(main())


@models
def test_recognizer_understands_the_voice(model: Callable[[str], Path], say: Callable[..., Path]) -> None:
    async def main() -> None:
        config = WhisperConfig()
        async with open_whisper(config, model(config.model)) as recognizer:
            text = await recognizer.transcribe(
                read_recording(say("Can I bring my dog to the hotel?")).at(SPEECH_RATE)
            )
            assert jiwer.wer("can i bring my dog to the hotel", plain(text)) <= 0.15
            assert await recognizer.transcribe(np.zeros(3 * SPEECH_RATE, np.int16)) == ""

    clock.run(main())


@models
def test_word_error_rate_on_real_recordings(model: Callable[[str], Path], recordings: Path) -> None:
    """28 short utterances, read books, orders and telephone prompts: the tight padding costs nothing."""

    async def main() -> tuple[list[str], list[str]]:
        config = WhisperConfig()
        wanted, got = [], []
        async with open_whisper(config, model(config.model)) as recognizer:
            for line in (recordings / "utterances.jsonl").read_text().splitlines():
                entry = json.loads(line)
                wanted.append(plain(entry["text"]))
                got.append(
                    plain(
                        await recognizer.transcribe(
                            read_recording(recordings / entry["file"]).at(SPEECH_RATE)
                        )
                    )
                )
        return wanted, got

    wanted, got = clock.run(main())
    assert jiwer.wer(wanted, got) < 0.12  # numbers are not normalized here: 8-ounce, eight ounce


def plain(text: str) -> str:
    words = "".join(c if c.isalnum() or c == "'" else " " for c in text.lower()).split()
    return " ".join(words)


@pytest.mark.parametrize(
    "open_engine",
    [
        lambda path: open_whisper(WhisperConfig(), path),
        lambda path: open_piper(PiperConfig(), path),
        lambda path: open_llama(LlamaCppConfig(), path, PROMPT),
    ],
    ids=["recognizer", "voice", "language model"],
)
def test_a_broken_model_is_a_clear_error(open_engine: Callable[[Path], object], tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    (tmp_path / "broken.onnx.json").write_text("{}")

    async def main() -> None:
        async with open_engine(broken):  # type: ignore[attr-defined]
            pass

    with pytest.raises(EngineDead, match=r"broken\.onnx"):
        clock.run(main())


@pytest.mark.parametrize(
    ("text", "seconds", "kept"),
    [
        ("What time is check in? What time is check in? What time is che", 2.0, "What time is check in?"),
        ("Give me a drip coffee. Give me a drip coffee.", 3.0, "Give me a drip coffee."),
        ("so I said to him that it was late", 2.0, "so I said to him that it was late"),
        ("no no no no no no", 2.0, "no no no no no no"),
        ("No, no, no, no, no, no, no, no, no", 0.6, "No,"),
        ("two two two two two", 2.0, "two two two two two"),
        ("", 1.0, ""),
        ("Hello.", 0.5, "Hello."),
    ],
)
def test_cut_loop(text: str, seconds: float, kept: str) -> None:
    assert cut_loop(text, seconds) == kept


def test_split_long_cuts_at_the_quietest_point_and_loses_nothing() -> None:
    samples = np.random.default_rng(1).normal(0, 0.3, 70 * SPEECH_RATE).astype(np.float32)
    for second in (25, 50):
        samples[second * SPEECH_RATE : second * SPEECH_RATE + 4000] = 0
    pieces = split_long(samples, 28.0)
    assert np.array_equal(np.concatenate(pieces), samples)
    assert all(len(piece) <= 28 * SPEECH_RATE for piece in pieces)
    assert abs(len(pieces[0]) / SPEECH_RATE - 25.1) < 0.2


def test_trim_keeps_the_sound_and_drops_silence() -> None:
    sound = (np.sin(np.arange(2205) / 10) * 10000).astype(np.int16)
    silence = np.zeros(22050, np.int16)
    out, start = trim(np.concatenate([silence, sound, silence]), 22050)
    assert 22050 - 0.011 * 22050 <= start <= 22050
    assert len(sound) < len(out) < len(sound) + 0.15 * 22050
    assert trim(silence, 22050)[0].size == 0


@models
def test_a_requantized_model_is_made_once_and_says_nearly_the_same(
    model: Callable[[str], Path], tmp_path: Path
) -> None:
    import gguf
    from gguf import quants

    source = file_in(model("smollm2-135m-instruct"), ".gguf")
    made = requantized(source, "Q8_0", tmp_path)
    assert requantized(source, "Q8_0", tmp_path) == made
    assert [path.name for path in made.parent.iterdir()] == [made.name], "no half-made file is left"
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(made)
    assert {name for name in before.fields if "." in name} == {name for name in after.fields if "." in name}
    kinds = {tensor.tensor_type.name for tensor in after.tensors}
    assert kinds == {"Q8_0", "F32"}
    for old, new in zip(before.tensors, after.tensors, strict=True):
        was = quants.dequantize(old.data, old.tensor_type)
        now = quants.dequantize(new.data, new.tensor_type)
        assert old.name == new.name
        assert np.abs(was - now).max() <= np.abs(was).max() / 127, (
            old.name
        )  # half a step of Q8_0, and rounding


@models
def test_a_cache_that_cannot_be_written_costs_speed_only(
    model: Callable[[str], Path], tmp_path: Path
) -> None:
    source = file_in(model("smollm2-135m-instruct"), ".gguf")
    (tmp_path / "file").write_text("not a folder")
    assert requantized(source, "Q8_0", tmp_path / "file") == source


def test_a_damaged_gguf_file_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64)
    with pytest.raises(ValueError, match=r"damaged\.gguf"):
        requantized(damaged, "Q8_0", tmp_path)
    assert list(tmp_path.rglob("*.part")) == []

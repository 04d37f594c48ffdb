"""The conversation as it was heard, and prompts whose prefix an engine can keep."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from voicebot.engines import Message
from voicebot.history import History

SYSTEM = "You are a phone assistant."


def roles(prompt: list[Message]) -> list[str]:
    return [message.role for message in prompt]


def alternate(prompt: list[Message]) -> bool:
    said = roles(prompt)
    return said[0] == "system" and said[-1] == "user" and all(a != b for a, b in itertools.pairwise(said))


def test_a_prompt_is_the_system_prompt_what_was_said_and_the_new_words() -> None:
    history = History(SYSTEM, 4000)
    history.assistant("Hello.")
    history.user("What time is check-in?")
    history.assistant("At three.")
    assert history.prompt("Thanks.") == [
        Message("system", SYSTEM),
        Message("assistant", "Hello."),
        Message("user", "What time is check-in?"),
        Message("assistant", "At three."),
        Message("user", "Thanks."),
    ]


def test_asking_for_a_prompt_says_nothing() -> None:
    """The answer may be retracted: only what was heard is kept."""
    history = History(SYSTEM, 4000)
    history.prompt("never answered")
    assert history.messages == []
    assert history.prompt("again") == [Message("system", SYSTEM), Message("user", "again")]


def test_two_of_one_role_become_one_message() -> None:
    history = History(SYSTEM, 4000)
    history.assistant("Hello.")
    history.assistant("Are you still there?")
    history.user("Yes,")
    history.assistant("")  # cut off before its first word
    assert history.prompt("I want a room.") == [
        Message("system", SYSTEM),
        Message("assistant", "Hello. Are you still there?"),
        Message("user", "Yes, I want a room."),
    ]


def test_nothing_heard_is_no_message() -> None:
    history = History(SYSTEM, 4000)
    history.assistant("  ")
    assert history.messages == []


TEXT = st.sampled_from(["Yes.", "What time is check-in?", "At three in the afternoon.", "x" * 150, "y" * 60])
TURNS = st.lists(st.tuples(TEXT, st.one_of(st.just(""), TEXT)), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(TURNS, st.booleans())
def test_each_prompt_continues_the_one_before(turns: list[tuple[str, str]], greeted: bool) -> None:
    history = History(SYSTEM, 10**9)
    if greeted:
        history.assistant("Hello.")
    before: list[Message] = []
    for user, heard in turns:
        prompt = history.prompt(user)
        assert alternate(prompt)
        assert prompt[-1].content.endswith(user)
        if before:
            # All but the last message are the same; the caller's last words may have grown.
            assert prompt[: len(before) - 1] == before[:-1]
            grown = prompt[len(before) - 1]
            assert grown.role == "user" and grown.content.startswith(before[-1].content)
        before = prompt
        history.user(user)
        history.assistant(heard)


@settings(max_examples=150, deadline=None)
@given(TURNS)
def test_trimming_keeps_the_system_prompt_and_the_newest_and_bounds_the_rest(
    turns: list[tuple[str, str]],
) -> None:
    limit = 400
    history = History(SYSTEM, limit)
    history.assistant("Hello.")
    cuts, before, asked = 0, list(history.messages), 0
    for user, heard in turns:
        prompt = history.prompt(user)
        assert prompt[0] == Message("system", SYSTEM)
        assert alternate(prompt)
        assert prompt[-1].content.endswith(user)
        kept = len(history.messages)
        assert history.messages == before[len(before) - kept :]  # only the oldest went
        if kept < len(before):
            cuts += 1
            assert sum(len(m.content) for m in before) > limit
            assert kept >= len(before) // 2  # the older half, at once
        history.user(user)
        history.assistant(heard)
        before = list(history.messages)
        asked += 1
    assert cuts <= asked


def test_trimming_is_rare_so_that_the_prefix_stays() -> None:
    history = History(SYSTEM, 2000)
    cuts, length = 0, 0
    for _ in range(200):
        history.prompt("What about the next one?")
        cuts += len(history.messages) < length
        history.user("What about the next one?")
        history.assistant("It is as good as the one before.")
        length = len(history.messages)
        assert sum(len(m.content) for m in history.messages) < 2000 + 200
    assert 0 < cuts < 20

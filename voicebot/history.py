"""The conversation as it was heard, and the prompt made from it."""

from __future__ import annotations

from typing import Literal

from voicebot.engines import Message


class History:
    """Only what was said and heard is in it. Append-only, so that the prompt's prefix stays the same
    from turn to turn and an engine's prefix cache hits; when it grows over `max_chars` its older half
    goes at once, rather than a little in every turn."""

    def __init__(self, system_prompt: str, max_chars: int) -> None:
        self._system = Message("system", system_prompt)
        self._max_chars = max_chars
        self.messages: list[Message] = []

    def user(self, text: str) -> None:
        self._say("user", text)

    def assistant(self, text: str) -> None:
        self._say("assistant", text)

    def _say(self, role: Literal["user", "assistant"], text: str) -> None:
        # Two in a row (an answer cut before its first word, a question into the silence) make one
        # message: chat templates expect the roles to alternate.
        if self.messages and self.messages[-1].role == role:
            text = f"{self.messages.pop().content} {text}"
        if text.strip():
            self.messages.append(Message(role, text.strip()))

    def prompt(self, user_text: str, cut: str = "") -> list[Message]:
        """System prompt, what was said, and the new words of the caller. `cut` is what was heard of an
        answer that these words interrupt: it is not in the history yet."""
        if sum(len(message.content) for message in self.messages) > self._max_chars:
            del self.messages[: len(self.messages) // 2]
        said = History("", self._max_chars)
        said.messages = list(self.messages)
        said.assistant(cut)
        said.user(user_text)
        return [self._system, *said.messages]

"""Cuts the language model's tokens into pieces that can be spoken one by one. A plain state machine.

It reads no clock and awaits nothing. Text goes in character by character, so the pieces depend on
the text alone and never on how it was cut into deltas; only `idle` adds what the driver knows about time.
The pieces joined are the text: whitespace after a border stays with the piece before it, as far as it
has come by then.

The rules:

1. A sentence end is a border. `!`, `?` and a dot count before whitespace; the end marks of other
   scripts (。！？ । ؟ ...) count before anything that is not one more mark, a closing quote or bracket.
   Each sentence is a piece, however short, because nobody knows when the next one comes. Only
   a fragment waits for what follows: fewer than two letters in the first piece, three in later ones.
2. A dot whose meaning depends on what follows waits for it: for a character after a number and after
   "No.", for the next word after "U.S.", initials, "Inc."; `DOTTED` in sentence_ends.py has them all.
   Titles, "e.g." and list markers never end a sentence. A dot inside a word, number or address is
   no mark, except in "lower.Upper" when the second word is complete and no domain.
3. A run of dots ends a sentence before a capital letter and is a clause border otherwise.
4. A clause border is a comma, semicolon, colon or dash. In the FIRST piece it counts from
   `first_min_chars` on, or after a stock opening ("Sure,"); there a conjunction counts as well, the
   border lies before it, and so does the whitespace after one of `openings` ("I'm sorry"), comma or
   not. In the second piece it counts from `min_chars` on, in later ones from half of `max_chars`: speech
   of the earlier pieces covers the wait, and whole sentences sound better.
5. Within a quote or bracket no border counts until the piece has `first_max_chars` (first) or half of
   `max_chars` (later): an unclosed one cannot block. Links, inline code and tags are stricter:
   they stay whole up to `max_chars`.
6. A piece that reaches `first_max_chars` (first) or `max_chars` (later) is cut at its best border:
   sentence, clause, conjunction, preposition, word. Without any, a cut comes at `max_chars`, between
   two user-perceived characters. An address of up to URL_MAX characters is never cut.
7. A line break is a border and closes all quotes and brackets. So is the end of a reasoning block,
   after which the next piece is a first one: what came before is not spoken.
8. `idle` gives what has been held by rule 1 or 2 for a character that may not come, when it reads
   like a finished sentence, and a clause that rule 4 would let go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import regex

from voicebot.sentence_ends import CLOSERS, STOPS, Is, ends_if_last, extends, judge

URL_MAX = 2048
"""Characters; longer addresses are not in use."""

ASCII_COMMAS = frozenset(",;:—–-،؛")
WIDE_COMMAS = frozenset("，、；：､")
PAIRS = {
    "(": ")", "[": "]", "{": "}", "“": "”", "„": "“”", "«": "»", "‹": "›", "「": "」", "『": "』",
    "（": "）", "【": "】", "《": "》", "〈": "〉", "［": "］", "｛": "｝",
}  # fmt: skip
REASONING_ENDS = ("</think>", "</thinking>", "</reasoning>")
LINES = frozenset("\n\u2028\u2029")
GLUE = frozenset("\u00a0\u202f\u2007")  # no-break spaces: inside numbers and before French marks

STOCK_OPENINGS = frozenset(
    "sure|no|yes|yeah|yep|ok|okay|well|right|great|good|perfect|thanks|thank you|sorry|i'm sorry|i am sorry|"
    "oh|ah|hm|hmm|so|now|alright|all right|of course|absolutely|certainly|definitely|exactly|indeed|actually|"
    "no problem|got it|i see|sure thing|let's see|let me see|one moment|ja|nein|gut|klar|natürlich|gerne|"
    "also|oui|non|bien sûr|d'accord|alors|sí|claro|bueno|vale|por supuesto|certo|va bene|sim|não".split("|")
)
GREETINGS = frozenset("hi hello hey dear hallo bonjour hola ciao".split())
STRONG_CONJUNCTIONS = frozenset(
    "but because although though whereas while unless until which if aber weil obwohl während sondern mais "
    "parce pero porque aunque perché".split()
)
"""They begin a clause; the others as often join words."""
CONJUNCTIONS = STRONG_CONJUNCTIONS | frozenset(
    "and or so when where who that as since than before after und oder denn dass et ou que qui y o e "
    "che".split()
)
PREPOSITIONS = frozenset("to in on at by for with from into about near after before over under".split())
ARTICLES = frozenset(
    "the a an of my your his her our their its this these is are was were be not no very more most mr mrs ms "
    "dr der die das den dem des ein eine einen im am le la les un une de du el los".split()
)
CLINGING = CONJUNCTIONS | PREPOSITIONS | ARTICLES
"""No word border right after these when another is near."""

_MARGIN = re.compile(r"[\s#>*+()•\-–—]*\Z")
_URL = re.compile(r"\W{0,4}(?:https?://|www\.)", re.I)


class SentenceChunker:
    """Token deltas in, pieces that can be spoken now out; the rules are at the top of the file.

    `"".join(pieces) == "".join(deltas)` over any sequence of calls that ends with `flush`. A piece is
    never empty, and has at most `max_chars` characters and one of whitespace (addresses are the
    exception). One of whitespace alone comes only from `flush`, or from a run that is longer than
    `max_chars`. Lengths are in characters. Raises nothing.
    """

    def __init__(
        self,
        *,
        first_min_chars: int = 12,
        first_max_chars: int = 60,
        min_chars: int = 40,
        max_chars: int = 220,
        openings: Iterable[str] = (),
    ) -> None:
        self._first_min, self._first_max = first_min_chars, first_max_chars
        self._min, self._max = min_chars, max_chars
        self._openings = frozenset(_plain(opening) for opening in openings)
        self._pieces = 0
        self._restart("")

    def feed(self, delta: str) -> list[str]:
        """The pieces that `delta` completes, in order; often none."""
        out: list[str] = []
        todo: list[Iterator[str]] = [iter(delta)]  # on top: what a cut has left over, to be read again
        while todo:
            char = next(todo[-1], None)
            if char is None:
                todo.pop()
            elif cut := self._push(char):
                todo.append(iter(self._cut(cut, out)))
        return out

    def idle(self) -> list[str]:
        """What can be spoken if nothing follows for now; the driver calls it after about 150 ms of silence.

        The text given ends with a mark and never within a word.
        """
        out: list[str] = []
        text = self._tail.rstrip()
        if not any(map(str.isalnum, text)) or (self._open and len(text) < self._soft):
            return out
        if self._fragment >= len(text):
            pass
        elif self._end == len(text):
            if not ends_if_last(text, self._stop, self._ahead):
                return out
        elif (
            self._mark != len(text) or text[self._mark_at - 1].isdigit() or not self._clause_is_due(len(text))
        ):
            return out
        self._cut(len(self._tail), out)
        return out

    def flush(self) -> list[str]:
        """The rest, at the end of the stream or at a border in it (a tool call). Starts anew: what is
        fed next begins with a first piece."""
        out: list[str] = []
        while self._end and self._end < len(self._tail):
            kind, cut = self._judged(final=True)
            if kind is not Is.SENTENCE or self._open or not self._substantial(cut) or cut >= len(self._tail):
                break
            out += self.feed(self._cut(cut, out))
        if self._tail:
            out.append(self._tail)
        self._pieces = 0
        self._restart("")
        return out

    # State of the unsent tail. Positions are indices into it, 0 is "none".

    def _restart(self, before: str) -> None:
        self._before = before[-1:]
        text = before.rstrip().rstrip(CLOSERS)
        starts = before[-1:] in LINES or not text or text[-1] in STOPS or text[-1] in ":;"
        self._lead = "" if starts else text[-1]
        """What stands before the tail in its sentence, or "" where a sentence begins."""
        self._tail = ""
        self._open: list[tuple[str, bool]] = []
        """Open pairs: the characters that close it, and whether it must stay whole (rule 5)."""
        self._line = 0
        """Where the current line begins."""
        self._fragment = 0
        """Behind the last sentence or line that waits because it is short (rule 1)."""
        self._stop = self._end = 0
        """A run of stops and closers that is being judged: its first character, and behind its last."""
        self._mark_at = self._mark = 0
        """A comma that is being judged, and behind its closers."""
        self._held = self._clause = self._conjunction = self._phrase = 0
        """The last border of its kind: a sentence end within a pair, a clause, before a conjunction or
        a preposition."""
        self._word = self._clinging = self._inner = self._strict = 0
        """The last word border: a good one, after a clinging word, within a pair, within a strict one."""
        self._word_start, self._word_clear = 0, True
        """Where the current word begins, and whether no pair was open there."""

    def _cut(self, at: int, out: list[str]) -> str:
        piece, rest = self._tail[:at], self._tail[at:]
        out.append(piece)
        if piece.endswith(REASONING_ENDS):
            self._pieces = 0
        elif not piece.isspace():
            self._pieces += 1
        self._restart(piece)
        return rest

    @property
    def _soft(self) -> int:
        return self._max // 2 if self._pieces else self._first_max

    def _substantial(self, cut: int) -> bool:
        """More than a fragment (rule 1). A letter of a script beyond Cyrillic says as much as two."""
        weight, need = 0, 3 if self._pieces else 2
        for char in self._tail[:cut]:
            if char.isalnum():
                weight += 2 if char >= "\u0530" else 1
                if weight >= need:
                    return True
        return False

    def _push(self, char: str) -> int:
        """Takes one character; returns where to cut the tail, or 0."""
        self._tail += char
        tail, size = self._tail, len(self._tail)
        if char in LINES:
            if self._substantial(size):
                return size
            self._open.clear()
            if any(map(str.isalnum, tail)):
                self._fragment = size
            self._line, self._end, self._mark = size, 0, 0
        cut = self._sentence(char, size) or self._comma(char, size)
        if cut:
            return cut
        self._pair(char, size)
        if char == ">" and tail.endswith(REASONING_ENDS):
            return size
        if char.isspace() and char not in GLUE and (cut := self._space(size)):
            return cut
        return self._limit(size)

    def _sentence(self, char: str, size: int) -> int:
        if self._end and self._end == size - 1 and extends(char):
            self._end = size
            return 0
        if self._end:
            kind, cut = self._judged(final=False)
            if kind is not Is.UNCLEAR:
                self._end = 0
            if kind is Is.CLAUSE:
                return self._clause_at(cut)
            if kind is Is.SENTENCE and not self._substantial(cut):
                self._fragment = cut
            elif kind is Is.SENTENCE:
                if not self._open:
                    return cut
                if not any(strict for _, strict in self._open):
                    self._held = cut
                    if size >= self._soft:
                        return cut
        if char in STOPS:
            self._stop, self._end = size - 1, size
        return 0

    def _comma(self, char: str, size: int) -> int:
        if self._mark:
            mark = self._tail[self._mark_at]
            before = self._tail[self._mark_at - 1] if self._mark_at else self._before
            behind = self._mark == size - 1
            if behind and char in CLOSERS:
                self._mark = size
            elif mark in WIDE_COMMAS or (mark == "—" and not char.isspace() and behind):
                self._mark = 0
                if not (before.isdigit() and char.isdigit()) and char not in ASCII_COMMAS | WIDE_COMMAS:
                    return self._clause_at(size if char.isspace() else size - 1)
            elif (not char.isspace() and behind) or (mark in "–-" and not before.isspace()):
                self._mark = 0
            elif not (before.isdigit() or before.isspace()):
                self._mark = 0
                return self._clause_at(size)
            elif not char.isspace():  # "5, 2026" and "5 - 3" stay together
                self._mark = 0
                if not char.isdigit():
                    return self._clause_at(size - 1)
        if (char in ASCII_COMMAS or char in WIDE_COMMAS) and not _MARGIN.match(self._tail, self._line):
            self._mark_at, self._mark = size - 1, size
        return 0

    def _clause_at(self, border: int) -> int:
        if self._open:
            return 0
        self._clause = border
        return border if self._clause_is_due(border) else 0

    def _clause_is_due(self, border: int) -> bool:
        if not self._substantial(border):
            return False
        if self._pieces:
            return border >= (self._min if self._pieces == 1 else max(self._min, self._max // 2))
        return border >= self._first_min or _stock(self._tail[:border])

    def _pair(self, char: str, size: int) -> None:
        """Keeps account of quotes and brackets. Apostrophes are none."""
        before = self._tail[size - 2] if size > 1 else self._before
        if char == "`":
            if before == "`" or any(closers == "`" for closers, _ in self._open):
                self._close("`")  # a fence is no inline code
            else:
                self._open.append(("`", True))
        elif any(char in closers for closers, _ in self._open):
            self._close(char)
            end = len(self._tail[:-1].rstrip())
            if not self._end and end and self._tail[end - 1] in STOPS:  # « Oui. »
                self._stop, self._end = end - 1, size
        elif char == '"':
            if not before or before.isspace() or before in PAIRS or before in "—–-*_":
                self._open.append(('"', False))
        elif char in PAIRS:
            if before not in (":", ";") or char != "(":  # :( is a face
                self._open.append((PAIRS[char], char == "[" or (char == "(" and before == "]")))
        elif before == "<" and (char.isalpha() or char == "/"):
            self._open.append((">", True))
        del self._open[8:]  # deeper is not text

    def _close(self, char: str) -> None:
        for depth in reversed(range(len(self._open))):
            if char in self._open[depth][0]:
                del self._open[depth:]
                return

    def _space(self, size: int) -> int:
        """A breakable whitespace character: a word border, or more of one."""
        word = self._tail[self._word_start : size].strip()
        if not word:
            self._word_start = size
            return 0
        if not self._pieces and not self._open and _plain(self._tail) in self._openings:
            return size
        start, clear = self._word_start, self._word_clear and not self._open
        self._word_start, self._word_clear = size, not self._open
        name = word.lower()
        if self._open:
            if any(strict for _, strict in self._open):
                self._strict = size
            else:
                self._inner = size
        elif name in CLINGING:
            self._clinging = size
        else:
            self._word = size
        if clear and start and name in PREPOSITIONS:
            self._phrase = start
        if clear and start and name in CONJUNCTIONS and self._substantial(start):
            self._conjunction = start
            needed = (
                self._first_min if name in STRONG_CONJUNCTIONS else max(self._first_min, self._first_max // 2)
            )
            if not self._pieces and start >= needed:
                return start
        return 0

    def _limit(self, size: int) -> int:
        if self._held and size >= self._soft:
            return self._held
        first = not self._pieces
        limit, least = (min(self._first_max, self._max), self._first_min) if first else (self._max, self._min)
        if size <= limit:
            return 0
        for border in (self._clause, self._conjunction):
            if border >= least:
                return border
        words = (self._phrase, self._word, self._clinging)
        for border in (*(word for word in words if word >= max(limit // 2, least)), *words, self._inner):
            if border >= least:
                return border
        if border := self._word or self._clinging or self._inner:
            return border
        if size <= self._max:
            return 0
        if self._strict:
            return self._strict
        if size <= URL_MAX and _URL.match(self._tail, self._word_start):
            return 0
        # Before the character just read: whether it belongs to the last one is known only with it.
        starts = [match.start() for match in regex.finditer(r"\X", self._tail)]
        return next((at for at in reversed(starts) if 0 < at < size), size - 1)

    @property
    def _ahead(self) -> str:
        """What is in the line before the dot that is judged."""
        return self._tail[self._line : self._stop] if self._line else self._lead + self._tail[: self._stop]

    def _judged(self, *, final: bool) -> tuple[Is, int]:
        return judge(self._tail, self._stop, self._end, self._ahead, final=final)


def _stock(opening: str) -> bool:
    words = " ".join(_letters(opening)).lower()
    return words in STOCK_OPENINGS or words.split(" ", 1)[0] in GREETINGS


def _plain(opening: str) -> str:
    return opening.strip().replace("’", "'").casefold()


def _letters(text: str) -> list[str]:
    return [word.strip("\"'*_,;:—–-.!…") for word in text.replace("’", "'").split()]

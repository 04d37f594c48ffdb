"""From the model's text to what the voice reads: no markup, code, reasoning or emoji; English in words.

The order: blocks that may span pieces (code fences, reasoning, spelling), then links and tags, lines,
marks within a line, the operator's lexicon, the language's own rules, and last punctuation. What the
lexicon gives is left as it is by the language's rules: the operator overrides them.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from enum import Enum, auto

import regex

from voicebot import speakable_en

ADDRESS_WORDS = {
    "en": ("dot", "at", "dash", "underscore"),
    "de": ("Punkt", "at", "Minus", "Unterstrich"),
    "fr": ("point", "arobase", "tiret", "tiret bas"),
    "es": ("punto", "arroba", "guion", "guion bajo"),
    "it": ("punto", "chiocciola", "trattino", "trattino basso"),
    "pt": ("ponto", "arroba", "hífen", "sublinhado"),
    "nl": ("punt", "apenstaartje", "streepje", "underscore"),
}

_BLOCK = re.compile(r"```+|~~~+|<(/?)(think|thinking|reasoning|spell)\b[^<>\n]{0,200}>", re.I)
_INFO = re.compile(r"[\w+#. \-]{0,40}\n")
_MARGIN = re.compile(r"[ \t>*+\-]{0,40}\Z")
_SPECIAL_TOKEN = re.compile(r"<\|[^|<>\n]{1,40}\|>")
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)[^\s<>]{1,2000}|[^\s<>@]{1,64}@[^\s<>@]{1,255})>", re.I)
_LINK = re.compile(
    r"!?\[([^\[\]\n]{0,500})\](?:\((?:[^()\s]|\([^()\s]{0,200}\)){0,2000}(?:\s{1,3}[\"'(][^\"\n]{0,200}[\"')])?\s?\)"
    r"|\[[^\[\]\n]{0,60}\])"
)
_LINK_TAIL = re.compile(r"\]\([^()\s]{0,2000}\)")  # the text was in the piece before
_CITATION = re.compile(
    r"\s?\[(?:\d{1,3}(?:\s?[,;–\-]\s?\d{1,3}){0,6}|\^\w{1,20}|citation needed)\]|【\d[^【】\n]{0,60}】"
)
_BLOCK_TAG = re.compile(r"</?(?:br|p|div|li|ul|ol|tr|td|th|h[1-6]|table|hr)\b[^<>]{0,300}>", re.I)
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,300}>|<!--.{0,2000}?-->", re.S)
_URL = re.compile(r"(?<![\w@])(?:https?://|www\.)[^\s<>\"`|\\^{}\u3000-\u303f\uff00-\uff0f]{1,2048}", re.I)
_MAIL = re.compile(
    r"(?<![\w.+\-])(?:mailto:)?([\w.+\-]{1,64})@((?:[\w\-]{1,63}\.){1,8}[a-zA-Z]{2,24})(?![\w@])"
)
_DOMAIN = re.compile(
    r"(?<![\w@./\-])((?:[a-zA-Z0-9\-]{1,63}\.){1,5}(?:com|org|net|io|dev|edu|gov|app|ai|info|eu|de|fr|es|it|nl|ch|at|co|"
    r"uk))(?![\w\-@]|\.\w)(?:/[^\s<>\"`|\\^{}]{0,2048})?"
)
_URL_END = re.compile(r"[.,;:!?)\]*_~'’]{0,10}\Z")
_RULE = re.compile(r"[\s|:\-=*_~+#]{3,}")
_QUOTED = re.compile(r"(?:>\s?){1,10}|#{1,6}\s{1,9}")
_BULLET = re.compile(r"[-*+•·‣▪◦–—]\s{1,9}(?:\[[ xX]\]\s)?")
_NUMBERED = re.compile(r"(?:\(?(\d{1,2})\)|(\d{1,3})\.|\(?([a-zA-Z])\)|([a-z])\.(?=\s[A-Z]))\s{1,9}")
_FACE = re.compile(r"(?<![^\s.,!?])[:;=8]['\-]?[)(DPpOo/|\\3*](?!\w)|<3(?!\d)")
_ESCAPED = re.compile(r"\\([^\w\s])")
_DECORATION = re.compile(r"[-=*_~#+<>|]{3,}")
_ELLIPSIS = re.compile(r"\s{0,9}(?:\.{2,}|…[.…]*)\s*(\S?)")
_GONE = regex.compile(r"[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Me}\uFE00-\uFE0F]")
_PICTURE = regex.compile(r"[[\p{So}\p{Sk}\p{Extended_Pictographic}]--[°`\^‼⁉]]", regex.V1)
_SPACE = regex.compile(r"[\p{Z}\t\v\f\x85]+")

_STAND_IN = "\U00010c80"  # a capital letter of a script without users; espeak does not know it either
_GLUED_BRACKET = re.compile(r"(?<=\w)\(([^()\s]{0,30})\)")
_DASH = re.compile(r"\s*(?:—|–{2,}|--)[—–\-\s]*|\s[-–]+\s")
_QUOTE = re.compile(r"[\"“”„‟«»‹›「」『』《》〈〉【】]|(?<!\w)['’‘]|['’‘](?!\w)")
_LEFTOVER = re.compile(r"[*_~^|\\<>{}\[\]`#]")
_MARK_RUN = re.compile(r"[,;:.!?](?:\s?[,;:.!?])+(?![\w])")
_LEAD = re.compile(r"(?:[\s,;:.!?/]|-(?!\d))*")


class _In(Enum):
    TEXT = auto()
    CODE = auto()
    REASONING = auto()
    SPELLING = auto()


class Speakable:
    """What the voice gets for the pieces of one answer, given in order. One object per answer.

    Calling it raises nothing, whatever the piece; "" means that nothing is to be said. The text given is
    one line without markup, symbols for decoration, emoji or control characters. `language` is an ISO
    639-1 code, with or without a region; the words of numbers and abbreviations are written out for
    English, other languages get the rest. `lexicon` has the operator's replacements for whole words,
    found in any case.
    """

    def __init__(self, language: str = "en", *, lexicon: Mapping[str, str] | None = None) -> None:
        code = language.lower()[:2]
        self._english = code == "en"
        self._address_words = ADDRESS_WORDS.get(code, ADDRESS_WORDS["en"])
        self._lexicon = {word.lower(): spoken for word, spoken in (lexicon or {}).items() if word.strip()}
        longest_first = sorted(self._lexicon, key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first))
        self._words = re.compile(rf"(?<!\w)(?:{names})(?!\w)", re.I) if names else None
        self._in = _In.TEXT
        self._line_begins = True

    def __call__(self, piece: str) -> str:
        parts = [self._spell(text) if spelled else self._read(text) for text, spelled in self._blocks(piece)]
        return _punctuate("".join(parts))

    def _blocks(self, piece: str) -> list[tuple[str, bool]]:
        """The text to be read, and whether it is to be spelled. Keeps the state between pieces."""
        piece = piece.replace("\r\n", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
        kept: list[tuple[str, bool]] = []
        at = 0
        for match in _BLOCK.finditer(piece):
            self._keep(piece[at : match.start()], kept)
            closes, tag = match[1] == "/", (match[2] or "").lower()
            if not tag:
                self._fence(piece, match, at)
            elif tag == "spell":
                if self._in in (_In.TEXT, _In.SPELLING):
                    self._in = _In.TEXT if closes else _In.SPELLING
            elif closes:
                if self._in is _In.TEXT:  # the opening tag was in the prompt
                    kept.clear()
                self._in = _In.TEXT
            elif self._in is not _In.CODE:
                self._in = _In.REASONING
            at = match.end()
        self._keep(piece[at:], kept)
        self._line_begins = piece[-1:] == "\n" if piece else self._line_begins
        return kept

    def _keep(self, text: str, kept: list[tuple[str, bool]]) -> None:
        if self._in is _In.SPELLING and "\n" in text:  # an end tag was forgotten
            spelled, _, text = text.partition("\n")
            kept.append((spelled, True))
            self._in = _In.TEXT
        if text and self._in in (_In.TEXT, _In.SPELLING):
            kept.append((text, self._in is _In.SPELLING))

    def _fence(self, piece: str, match: re.Match[str], at: int) -> None:
        """A fence begins code where a line begins or where nothing but a language's name follows in its
        line; elsewhere three marks are an inline code's. Any fence ends code."""
        if self._in is _In.CODE:
            self._in = _In.TEXT
        elif self._in is _In.TEXT:
            line = max(piece.rfind("\n", at, match.start()) + 1, at)
            begins = self._line_begins if line == 0 else piece[line - 1] == "\n"
            if (begins and _MARGIN.match(piece, line, match.start())) or _INFO.match(piece, match.end()):
                self._in = _In.CODE

    def _spell(self, text: str) -> str:
        runs = re.findall(r"\w+", _GONE.sub("", text).replace("_", " "))
        return f" {', '.join(' '.join(run) for run in runs)} "

    def _read(self, text: str) -> str:
        text = self._plain(text)
        found: list[str] = []
        if self._words:
            # A letter stands for each, so that they are words to the language's rules, but none they know.
            text = text.replace(_STAND_IN, "")
            found = [self._lexicon.get(name.lower(), name) for name in self._words.findall(text)]
            text = self._words.sub(_STAND_IN, text)
        if self._english:
            text = speakable_en.normalise(text)
        spoken = iter(found)
        return re.sub(_STAND_IN, lambda _: next(spoken, ""), text) if found else text

    def _plain(self, text: str) -> str:
        """Without markup; symbols that may be read stay."""
        text = _AUTOLINK.sub(r"\1", _SPECIAL_TOKEN.sub(" ", text))
        text = _LINK.sub(lambda match: "" if match[1].lstrip("^").isdigit() else match[1], text)
        text = _CITATION.sub("", _LINK_TAIL.sub("", text))
        text = html.unescape(_TAG.sub("", _BLOCK_TAG.sub(" ", text)))
        text = _URL.sub(self._url, text)
        text = _MAIL.sub(
            lambda match: f" {self._address(match[1])} {self._address_words[1]} {self._address(match[2])}",
            text,
        )
        text = _DOMAIN.sub(lambda match: self._address(match[1]), text)
        text = _lines(text)
        text = _GONE.sub("", _SPACE.sub(" ", _PICTURE.sub(" ", _FACE.sub(" ", text).replace("\n", " "))))
        text = text.translate({ord("‼"): "!", ord("⁉"): "?", ord("’"): "'", ord("→"): ", ", ord("−"): "-"})
        text = re.sub(r"(?<=\d)\s?\*\s?(?=\d)", " × ", _ESCAPED.sub(r"\1", text))
        text = _DECORATION.sub(" ", re.sub(r"[-=]{1,3}>", ", ", text))
        text = re.sub(r"[*`]|~~|(?<!\w)_|_(?!\w)", "", text).replace("_", " ")
        return re.sub(r"(?<![\w.])\.(?=\d)", "0.", text)

    def _url(self, match: re.Match[str]) -> str:
        url = match[0]
        ending = _URL_END.search(url)
        cut = ending.start() if ending else len(url)
        host = re.split(r"[/?#]", re.sub(r"(?i)^https?://", "", url[:cut]), maxsplit=1)[0]
        host = re.sub(r":\d+$", "", host.rsplit("@", 1)[-1])
        return self._address(re.sub(r"(?i)^www\.", "", host)) + url[cut:]

    def _address(self, text: str) -> str:
        dot, _, dash, underscore = self._address_words
        words = {".": dot, "-": dash, "_": underscore, "+": "plus"}
        return re.sub(r"[.\-_+]", lambda match: f" {words[match[0]]} ", text.strip(".-")).strip()


def _lines(text: str) -> str:
    """One line: list and heading marks go, a line that ends without a mark gets a full stop."""
    lines = text.split("\n")
    out = []
    for number, line in enumerate(lines):
        line = line.strip()
        if not line or _RULE.fullmatch(line):
            continue
        for mark in (_QUOTED, _QUOTED, _BULLET):
            line = line[found.end() :] if (found := mark.match(line)) else line
        if found := _NUMBERED.match(line):
            line = f"{found[found.lastindex or 0]}, {line[found.end() :]}"
        if "|" in line:
            line = ", ".join(cell.strip() for cell in line.split("|") if cell.strip())
        bare = line.rstrip("*_`~\"'”’)] #")
        if number < len(lines) - 1 and bare and (bare[-1].isalnum() or line[-1] in ')]"”'):
            line += "."
        out.append(line)
    lead, tail = text[:1].isspace(), text[-1:].isspace()
    return (" " if lead else "") + " ".join(out) + (" " if tail else "")


def _pause(match: re.Match[str]) -> str:
    """A comma gives the longest pause of all marks within a sentence: some 300 ms with Piper."""
    following = match[1]
    return ". " + following if not following or following.isupper() else ", " + following


def _strongest(match: re.Match[str]) -> str:
    return next(mark for mark in "?!.;:," if mark in match[0])


def _punctuate(text: str) -> str:
    """Brackets and dashes become commas, quotes go, runs of marks become one."""
    text = re.sub(r"\s+", " ", _GONE.sub("", text.replace("\n", " ")))
    text = _ELLIPSIS.sub(_pause, text)
    text = _GLUED_BRACKET.sub(lambda match: match[1] if match[1] == "s" else f" {match[1]}", text)
    text = re.sub(r"[(（]", ", ", text)
    text = re.sub(r"[)）](?=\s?[\w])", ", ", text)
    text = re.sub(r"[)）]", "", text)
    text = _QUOTE.sub("", _DASH.sub(", ", text))
    text = _LEFTOVER.sub("", text)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r" (?=[,;:.!?](?!\w))", "", text)
    text = _MARK_RUN.sub(_strongest, text)
    text = re.sub(r"([,;])(?=[^\W\d])", r"\1 ", text)
    lead = _LEAD.match(text)
    text = text[lead.end() if lead else 0 :].strip()
    return text if any(map(str.isalnum, text)) else ""

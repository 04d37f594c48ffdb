"""What a dot, or any other end mark, is: rules 1 to 3 of chunking.py, as pure functions and tables.

`judge` looks at a run of marks and closers ("?!", ".)", "...") and at what follows as far as it has come.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from unicodedata import category

ASCII_STOPS = frozenset(".!?…‽")
WIDE_STOPS = frozenset("。！？｡．︒‼⁇⁈⁉؟۔।॥།։።፧፨။။៕᠃᠉꓿꘎꘏꩝")
"""These need no whitespace after them."""
STOPS = ASCII_STOPS | WIDE_STOPS
CLOSERS = "\"'”’“»›)]}」』）】》〉］｝*_~`"
OPENERS = "\"'“‘„«([{*_~`"

TITLES = frozenset(
    "dr mr mrs ms mx prof rev gen col capt cmdr lt sgt maj cpl hon gov sen rep pres messrs mme mlle hr "
    "fr".split()
)
"""With a capital letter, never a sentence's end."""
DOTTED = {
    "never": "e.g i.e vs approx cf viz ca z.b d.h bzw u.a o.ä incl resp p.ej sog ggf inkl evtl",
    "no number": "no nos nr art fig figs eq eqs vol vols ch sec pt pp p para ref ext apt ste tel op bd pág",
    "capital": "etc usw al a.m p.m min mins max hr hrs oz lb lbs ft yr yrs est misc govt",
    "opener": "st mt ft jr sr inc ltd co corp bros ave rd blvd dept univ assn sra srta dra "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun",
}
"""Words whose dot is no plain full stop, by what has to follow for it to end a sentence. An opener is
one of SENTENCE_OPENERS, with a capital letter."""
NEEDS = {word: need for need, words in DOTTED.items() for word in words.split()}
CAPITAL_ONLY = frozenset("mon tue tues wed thu thur thurs fri sat sun jan mar dec art co st ste op".split())
"""In lower case these are other words."""
SENTENCE_OPENERS = frozenset(
    "the a an i it he she we you they this that these those there then but and so if in on at for as my your "
    "his her our their its what when where who why how which is are was were do does did can could would "
    "should will please thanks thank let yes no not however also after before while with here now or to from "
    "some most many all both each one once since although because just maybe perhaps next finally".split()
)
TIME_NAMES = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday eastern pacific central mountain greenwich est "
    "edt pst pdt cst cdt mst gmt utc cet cest bst january february march april may june july august "
    "september october november december".split()
)
"""These continue "9 a.m."."""
GERMAN_MONTHS = frozenset(
    "januar jänner februar märz april mai juni juli august september oktober november dezember".split()
)
DOMAIN_ENDS = frozenset("com net org io js py ai dev app co edu gov info".split())
QUOTE_PARTICLES = ("と", "っ", "な", "の", "は", "が", "を", "に", "で")

_TOKEN = re.compile(r"\S*\Z")
_NUMBER = re.compile(r"[^\w\s]*\d[\d.,:/]*\Z")
_ROMAN = re.compile(r"[ivxlc]{1,5}\Z", re.I)
_DOTTED_LETTERS = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}\Z")
_WORD = re.compile(r"[^\W\d_]+")
_CITED = re.compile(r"(?:\[\d{1,3}\])+")
_CITED_SO_FAR = re.compile(r"(?:\[\d{0,3}\]?){1,3}\Z")
_LAST_WORD = 64
"""Characters looked at for the word before a mark: longer ones are no abbreviations."""


class Is(Enum):
    NOTHING = auto()
    UNCLEAR = auto()
    CLAUSE = auto()
    SENTENCE = auto()


_NOTHING, _UNCLEAR = (Is.NOTHING, 0), (Is.UNCLEAR, 0)


def extends(char: str) -> bool:
    """Whether `char`, glued to a mark, belongs to its sentence: more marks, closers, emoji."""
    return char in STOPS or char in CLOSERS or (char > "\u00a0" and _ornament(char))


def _ornament(char: str) -> bool:
    return category(char) in ("So", "Sk") or char in "\u200d\ufe0e\ufe0f"


def judge(tail: str, stop: int, end: int, ahead: str, *, final: bool) -> tuple[Is, int]:
    """What the marks and closers at `tail[stop:end]` are, and the position of the border behind them.

    `tail[end:]` must not be empty. `ahead` is what stands before them in their line. `final` says that
    no more text will come: what would be UNCLEAR is decided by what is there.
    """
    behind = tail[end:]
    after = behind.lstrip()
    border = len(tail) - len(after)
    core = tail[stop:end].rstrip(CLOSERS)
    if any(char in WIDE_STOPS for char in core):
        if border == end and core in "．｡" and tail[stop - 1 : stop].isdigit() and after[:1].isdigit():
            return _NOTHING
        if tail[end - 1] in "」』" and after.startswith(QUOTE_PARTICLES):
            return _NOTHING  # the quote is a part of its sentence
        return Is.SENTENCE, border
    token = _token(tail, stop)
    if border == end:
        return _judge_glued(tail, end, core, token, final)
    closed = len(core) < end - stop
    if core == "." and not closed and not any(map(str.isalnum, token)):
        return _NOTHING
    word_on = after.lstrip(OPENERS)
    first = word_on[:1]
    if "…" in core or (len(core) > 1 and set(core) == {"."}):
        return ((Is.SENTENCE if first.isupper() else Is.CLAUSE), border) if first else _UNCLEAR
    if core == "." and _list_marker(ahead, token):
        return _NOTHING
    need = ("figure" if _NUMBER.match(token) else _need(token)) if core == "." else ""
    if not need and closed:  # "Really?" she asked.
        return ((Is.CLAUSE if first.islower() else Is.SENTENCE), border) if first else _UNCLEAR
    if not need:
        return Is.SENTENCE, border
    if need == "never":
        return _NOTHING
    if not first:
        return _UNCLEAR
    word = (_WORD.match(word_on) or [""])[0]
    complete = final or len(word_on) > len(word) or len(word) > 12
    ends = _ends(need, token, first, word, complete)
    return _UNCLEAR if ends is None else (Is.SENTENCE, border) if ends else _NOTHING


def _ends(need: str, token: str, first: str, word: str, complete: bool) -> bool | None:
    """Whether a dot ends its sentence before `word`, which begins with `first`. None: not yet known."""
    if need == "no number":
        if first in "#+" or first.isdigit():
            return False
        if not _ROMAN.match(word) or not word.isupper():
            return True
        return word == "I" if complete else None  # "Fig. IV", but "No. I do"
    if not first.isalpha() or first.islower():
        return False
    if need == "figure":
        if len(token) > 2 or not token.isdigit():
            return True
        return word.lower() not in GERMAN_MONTHS if complete else None  # am 3. Mai
    if need == "capital":
        if token.lower() not in ("a.m", "p.m"):
            return True
        return word.lower() not in TIME_NAMES if complete else None
    return word.lower() in SENTENCE_OPENERS if complete else None


def _judge_glued(tail: str, end: int, core: str, token: str, final: bool) -> tuple[Is, int]:
    """As `judge`, where no whitespace follows."""
    after = tail[end:]
    first = after[0]
    if first == "[":  # a citation belongs to its sentence
        cited = _CITED.match(after)
        if cited and len(after) > cited.end():
            behind = end + cited.end()
            spaced = tail[behind].isspace()
            return judge(tail, end - len(core), behind, token, final=final) if spaced else _NOTHING
        return _UNCLEAR if _CITED_SO_FAR.match(after) and not final else _NOTHING
    if not token or not first.isalpha() or any(char in token for char in "@/="):
        return _NOTHING
    if "…" in core or (len(core) > 2 and set(core) == {"."}):
        return (Is.CLAUSE, end) if token[-1].isalpha() else _NOTHING
    if first >= "\u2e80":
        return _NOTHING if token[-1].isdigit() else (Is.SENTENCE, end)
    if not first.isupper():
        return _NOTHING
    if core != ".":
        return Is.SENTENCE, end
    if not (token.isalpha() and token.islower() and len(token) > 1) or _need(token):
        return _NOTHING
    word = (_WORD.match(after) or [""])[0]
    if len(word) == len(after) and not final:
        return _UNCLEAR
    plain = word[1:] == word[1:].lower() and word.lower() not in DOMAIN_ENDS
    following = after[len(word) : len(word) + 1]
    ends = plain and (not following or following.isspace() or following in ",!?'’")
    return (Is.SENTENCE, end) if ends else _NOTHING


def ends_if_last(text: str, stop: int, ahead: str) -> bool:
    """Whether the marks from `stop` to the end of `text` end a sentence if nothing follows for now."""
    if text[stop:].rstrip(CLOSERS) != ".":
        return True
    token = _token(text, stop)
    name = token.lower()
    if name in ("no", "etc"):
        return True
    address = "@" in token or "/" in token or name.startswith("www.")
    return not (address or _list_marker(ahead, token) or _NUMBER.match(token) or _need(token))


def _token(tail: str, stop: int) -> str:
    """The word before the mark at `stop`."""
    match = _TOKEN.search(tail[max(0, stop - _LAST_WORD) : stop])
    return match.group().lstrip(OPENERS) if match else ""


def _need(token: str) -> str:
    """What has to follow `token` and its dot for the dot to end a sentence; "" if nothing has to."""
    name, capital = token.lower(), token[:1].isupper()
    if capital and name in TITLES:
        return "never"
    if name in NEEDS and (capital or name not in CAPITAL_ONLY):
        return NEEDS[name]
    initial = len(token) == 1 and token.isalpha() and token < "\u2e80"
    return "opener" if initial or _DOTTED_LETTERS.match(token) else ""


def _list_marker(ahead: str, token: str) -> bool:
    """Whether `token`, the end of `ahead`, and a dot are a list marker: "1.", "a.", "IV." at the start."""
    numeral = token.isdigit() and len(token) <= 3
    if not numeral and not (len(token) == 1 and token.isalpha()) and not _ROMAN.match(token):
        return False
    ahead = ahead[: len(ahead) - len(token)].rstrip(' \t#>*+(-•"_')
    return not ahead or (numeral and ahead[-1] in ":;")

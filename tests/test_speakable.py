"""What the voice gets, as golden tables, and properties of it on arbitrary text."""

from __future__ import annotations

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from voicebot.chunking import SentenceChunker
from voicebot.speakable import Speakable

ENGLISH = [
    # Money.
    ("$500", "500 dollars"),
    ("It costs $1.", "It costs 1 dollar."),
    ("$3.50", "3 dollars and 50 cents"),
    ("$0.99", "99 cents"),
    ("$1,000.00", "1,000 dollars"),
    ("$1.2 million", "1.2 million dollars"),
    ("$5k", "5 thousand dollars"),
    ("US$20", "20 US dollars"),
    ("£1.01", "1 pound and 1 penny"),
    ("500 € or 5 EUR", "500 euros or 5 euros"),
    ("$10-$20", "10 to 20 dollars"),
    ("$20/hour", "20 dollars per hour"),
    # Quantities.
    ("50%", "50 percent"),
    ("-5°C", "minus 5 degrees Celsius"),
    ("72 °F", "72 degrees Fahrenheit"),
    ("1 kg, 5 km", "1 kilogram, 5 kilometers"),
    ("10 km/h and 6 ft.", "10 kilometers per hour and 6 feet."),
    ("5GB", "5 gigabytes"),
    ("for 5 min. Then", "for 5 minutes. Then"),
    ("3 1/2 kg", "3 and a half kilograms"),
    ("1/2 or 3/4 cup", "one half or three quarters cup"),
    ("3½", "3 and a half"),
    ("50/50 on 9/11, 24/7", "50 50 on 9 11, 24 7"),
    ("10-20 or 10–20", "10 to 20 or 10 to 20"),
    ("1,000,000 and 3.14 and .5", "1,000,000 and 3.14 and 0.5"),
    ("2 + 2 = 4", "2 plus 2 equals 4"),
    ("5 - 3, 5 * 3", "5 minus 3, 5 times 3"),
    ("2x4 and x²", "2 by 4 and x squared"),
    ("~5", "about 5"),
    # Times, dates, years.
    ("at 10:05", "at 10 oh 5"),
    ("10:30", "10 30"),
    ("The time is 12:00.", "The time is 12 o'clock."),
    ("14:00", "14 hundred hours"),
    ("at 9 a.m. in the", "at 9 AM in the"),
    ("9:05 pm", "9 oh 5 PM"),
    ("It is 9 a.m.", "It is 9 AM."),
    ("1:30:05", "1 hour 30 minutes 5 seconds"),
    ("16:9", "16 to 9"),
    ("in 1908", "in nineteen oh eight"),
    ("1900, 2000, 2005, 2026", "nineteen hundred, two thousand, two thousand five, twenty twenty-six"),
    ("1914-1918", "nineteen fourteen to nineteen eighteen"),
    ("the 1990s and '80s", "the nineteen nineties and eighties"),
    ("in 1500 people", "in 1500 people"),
    ("Jan. 5, 2026", "January 5th, twenty twenty-six"),
    ("2026-10-12", "October 12th, twenty twenty-six"),
    ("12.10.2026", "October 12th, twenty twenty-six"),
    ("10/12/2026", "October 12th, twenty twenty-six"),
    ("the 3rd", "the 3rd"),
    # Numbers that are names.
    ("555-1234", "5 5 5, 1 2 3 4"),
    ("(555) 123-4567", "5 5 5, 1 2 3, 4 5 6 7"),
    ("+1 555 123 4567", "plus 1, 5 5 5, 1 2 3, 4 5 6 7"),
    ("+49 30 1234567", "plus 4 9, 3 0, 1 2 3 4 5 6 7"),
    ("90210", "9 0 2 1 0"),
    ("12000 people", "12000 people"),
    ("Extension 22222 -----", "Extension 2 2 2 2 2"),
    ("code 3029", "code 3 0 2 9"),
    ("007", "0 0 7"),
    ("#5 and No. 5", "number 5 and number 5"),
    ("World War II", "World War two"),
    ("Henry VIII, Chapter IV", "Henry the eighth, Chapter four"),
    ("COVID-19", "COVID-19"),
    # Abbreviations and signs.
    ("Dr. J. R. Smith", "Doctor J R Smith"),
    ("Mr. X, Mrs. Y and Ms Z", "Mister X, Missus Y and Miz Z"),
    ("St. Louis, on Main St.", "Saint Louis, on Main Street."),
    ("Maple Dr. is", "Maple Drive is"),
    ("e.g. this, i.e. that", "for example this, that is that"),
    ("Apples etc.", "Apples et cetera."),
    ("etc. and", "et cetera and"),
    ("the U.S. office", "the US office"),
    ("in the U.S.", "in the US."),
    ("approx. 5 vs. 6", "approximately 5 versus 6"),
    ("AT&T, R&D", "AT and T, R and D"),
    ("he/she and/or TCP/IP w/o", "he or she and or TCP IP without"),
    ("C++", "C plus plus"),
    ("No. That is it.", "No. That is it."),
]
MARKUP = [
    ("**bold** *it* __b__ _i_ ~~s~~", "bold it b i s"),
    ("# Title\n", "Title."),
    ("- Milk\n", "Milk."),
    ("1. First thing.\n", "1, First thing."),
    ("- [x] done\n", "done."),
    ("> quoted\n", "quoted."),
    ("---\n", ""),
    ("| a | b |\n", "a, b."),
    ("|---|---|\n", ""),
    ("`code` here", "code here"),
    ("[text](http://x.y/z_(a)) is", "text is"),
    ('![alt](a.png "t") is', "alt is"),
    ("See https://www.example.com/a/b?c=d.", "See example dot com."),
    ("See example.com.", "See example dot com."),
    ("<https://a.example.org>", "a dot example dot org"),
    ("bob.smith@ex-ample.com", "bob dot smith at ex dash ample dot com"),
    ("<br/>x <b>y</b>", "x y"),
    ("x &lt;b&gt;&nbsp;y", "x b y"),
    ("Hi 😀 there 👨‍👩‍👧!", "Hi there!"),
    ("I am :) fine", "I am fine"),
    ("a\u200bb\x00c\u00add", "abcd"),
    ("Fact.[1] And [2, 3].", "Fact. And."),
    ("Well... ok", "Well, ok"),
    ("Well… Ok", "Well. Ok"),
    ("Wait...", "Wait."),
    ("see…ok", "see, ok"),
    ("Hello (toll free) there", "Hello, toll free, there"),
    ("(Say done.)", "Say done."),
    ("He said “go” now", "He said go now"),
    ("Wait -- what — no", "Wait, what, no"),
    ("snake_case item(s)", "snake case items"),
    ("What?!", "What?"),
    ("Tom's dogs'", "Tom's dogs"),
    ("rock 'n' roll", "rock n roll"),
    ("<|im_end|>ok", "ok"),
    ("Code <spell>AB-3029</spell>. <b>Now</b>", "Code A B, 3 0 2 9. Now"),
    ("<think>secret</think>ok", "ok"),
    ("secret</think>ok", "ok"),
    ("a ```x```", "a x"),
    *(
        (nothing, "")
        for nothing in ("", " ", "\n", "...", "***", "!!!", "$", "\ud800", "😀", "-----", "```", "|")
    ),
]


@pytest.mark.parametrize(("text", "spoken"), ENGLISH + MARKUP)
def test_spoken(text: str, spoken: str) -> None:
    assert Speakable()(text) == spoken


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Das kostet **500 €** am 3. Mai.", "Das kostet 500 € am 3. Mai."),
        ("Siehe [hier](http://a.de) 😀", "Siehe hier"),
        ("Mail an bob@beispiel.de", "Mail an bob at beispiel Punkt de"),
        ("Dr. Meier", "Dr. Meier"),
        ("Um 10:05 Uhr … ja", "Um 10:05 Uhr, ja"),
    ],
)
def test_other_languages_get_the_neutral_part(text: str, spoken: str) -> None:
    assert Speakable("de")(text) == spoken


def test_regions_are_ignored() -> None:
    assert Speakable("en-GB")("£5") == "5 pounds"


def test_blocks_that_span_pieces() -> None:
    def spoken(*pieces: str) -> list[str]:
        speakable = Speakable()
        return [speakable(piece) for piece in pieces]

    assert spoken("<think>Hmm. ", "Yes.</think>", "Sure.") == ["", "", "Sure."]
    assert spoken("<think>Hmm. ", "And ```so", " on") == ["", "", ""]
    assert spoken("So:\n", "```python\n", "print(1)\n", "```\nDone.") == ["So:", "", "", "Done."]
    assert spoken("So: ```py\n", "x\n", "``` Done.") == ["So:", "", "Done."]
    assert spoken("~~~\n", "x\n", "~~~\n", "Yes.") == ["", "", "", "Yes."]
    assert spoken("It is <spell>AB", "12</spell> ok.") == ["It is A B", "1 2 ok."]
    assert spoken("<spell>AB\n", "Go on.") == ["A B", "Go on."]


def test_the_lexicon_overrides() -> None:
    speakable = Speakable(lexicon={"SQL": "sequel", "Dr.": "Drive", "Siobhán": "Shivawn", "GB": "great big"})
    assert speakable("sql by Dr. Siobhán, 5 GB") == "sequel by Drive Shivawn, 5 great big"
    assert speakable("MySQLs") == "MySQLs"
    assert Speakable(lexicon={"Smith": "Smyth"})("Ask Dr. Smith") == "Ask Doctor Smyth"
    assert Speakable("de", lexicon={"5 €": "fünf Euro"})("Es kostet 5 €.") == "Es kostet fünf Euro."
    assert Speakable(lexicon={"": "x", " ": "y"})("a b") == "a b"


def test_through_the_chunker() -> None:
    text = "Sure! 😀 Here is **how**:\n\n```sh\nrm -rf x. Y\n```\n1. Pay $3.50.\n2. See [us](https://a.com/b). Thanks..."
    chunker, speakable = SentenceChunker(), Speakable()
    spoken = [speakable(piece) for piece in chunker.feed(text) + chunker.flush()]
    assert [words for words in spoken if words] == [
        "Sure!",
        "Here is how:",
        "1, Pay 3 dollars and 50 cents.",
        "2, See us.",
        "Thanks.",
    ]


PARTS = st.sampled_from(
    "<think> </think> <spell> </spell> ``` ` ** * _ ~~ # - 1. > | [ ] ( ) ](http://a.b) https://a.b/c x@y.zz <b> "
    "</b> <!-- --> & &amp; &#0; $ £ € % ° 5 22222 3.50 1,000 1/2 9:30 a.m. 1908 '90s II World War Dr. St. U.S. "
    "etc. ... … — – -- + = @ / \\ ^ ½ ² 😀 👨‍👩‍👧 1️⃣ © ™ → \u200b \u202e \ud800 \x00 你好。 ١٢ क word Word \U00010c80".split()
)
TEXTS = st.one_of(
    st.text(st.characters(), max_size=200),
    st.lists(st.one_of(PARTS, st.sampled_from([" ", "\n", "-"])), max_size=60).map("".join),
)
UNSPEAKABLE = regex.compile(
    r"[*_~^|\\<>{}\[\]`#\"\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}]|[[\p{Extended_Pictographic}]--[‼⁉]]", regex.V1
)


@settings(max_examples=600, deadline=None)
@given(st.lists(TEXTS, max_size=4), st.sampled_from(["en", "de", "ja", ""]))
def test_any_text_gives_plain_text(pieces: list[str], language: str) -> None:
    speakable = Speakable(language, lexicon={"word": "phrase"})
    for piece in pieces:
        spoken = speakable(piece)
        assert not UNSPEAKABLE.search(spoken), spoken
        assert spoken == spoken.strip()
        assert "  " not in spoken
        assert not spoken or any(map(str.isalnum, spoken))
        assert len(spoken) <= 20 * len(piece) + 20


@given(st.text("abcdefghij0123456789 ", max_size=80))
def test_letters_and_digits_are_never_deleted(text: str) -> None:
    spoken = Speakable("de")(text)
    assert spoken == " ".join(text.split())


@pytest.mark.parametrize(
    "unit",
    ["1", "1,", "1.", "1/", "1:", "1-", "1 ", "$", "$1", "(", ")", "[", "[a](", "](", "<", "<a ", "<!--", "&", "&#",
     "*", "_", "`", "~", "-", "- ", ".", ". ", ",", " ", "\n", "\n- ", "|", "a.", "A.", "a@", "a@a.", "www.",
     "https://", "a/", "@", "\\", "'", "\"", "…", "😀", "a\u0301", "#", "+1 ", "Dr. ", "I", "<think>", "<spell>", "x^"],
)  # fmt: skip
def test_long_runs_are_linear(unit: str) -> None:
    """With backtracking these would run for hours: the test's time limit is the judge."""
    Speakable(lexicon={"w": "b"})(unit * (50_000 // len(unit)) + "x")

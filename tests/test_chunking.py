"""The chunker against golden cuts, and its contract on arbitrary text and arbitrary deltas."""

from __future__ import annotations

import random

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from voicebot.chunking import SentenceChunker


def chunks(*deltas: str, **sizes: int) -> list[str]:
    chunker = SentenceChunker(**sizes)
    return [piece for delta in deltas for piece in chunker.feed(delta)] + chunker.flush()


# Text in which `|` marks where it is cut. Each is fed per character and in one delta.
CUTS = [
    # Dots that end nothing, and dots that do.
    "Dr. J. R. Smith arrives at 9 a.m. in the U.S. office. |Thanks.",
    "It costs 3.50 euro at example.com today. |Bye.",
    "Pi is 3.14. |The end. |In 1999. |Then.",
    "He paid $3.50. |Then 1,000,000. |Ok 5%. |Good.",
    "It was 9:30. |Then we left on 12.10.2026. |Right.",
    "We met on Jan. 5, 2026. |It rained.",
    "We met in Jan. |It rained.",
    "I live in the U.S. |The weather is nice. |U.S. Steel is big.",
    "Apples, pears, |etc. |Then more etc. and so on.",
    "Meet at 9 a.m. Monday or at 9 p.m. |We close at ten.",
    "Use e.g. this, |i.e. that. |Or approx. 5 vs. 6.",
    "Mr. and Mrs. Jones live on St. James St. |They are home.",
    "That is No. 5. |No. That is wrong. |No. I do not.",
    "See Fig. IV for it. |See Vol. |Then go.",
    "Vitamin C. |It is good. |J. Smith says so.",
    "The Acme Inc. |They sell. |Acme Inc. sells.",
    "Am 3. Mai kommt er. |Es kostet 3. |Danach geht er.",
    "He is ok… |She left. |Well... |She left again.",
    "Well... |let me see…ok.",
    "One. |Two",
    # Glued sentences.
    "Let me check.|Your order ships today.",
    "All is good!|Your order?|Yes.",
    "See asp.net and node.Js and example.Com now. |Bye.",
    # Quotes, brackets, markup.
    "(Say done.)",
    "Text (see p. 5. Then 6) ends. |Now.",
    '"Really?" she asked. |"Yes." |He left.',
    'A "quoted. Text" here. |Next.',
    "« Oui. » |Il part. |« Non. »",
    "**Note.** |Next. |*A* b.",
    "Note[1] this.[2] |Next one.",
    "See [the docs. Here](https://a.b/c?d=1) now. |`a. B` ok.",
    '```python\n|print("a. B")\n|```\nDone. |Yes.',
    "<think>Hmm. |The user asks.</think>|Sure, |I can.",
    'Say <spell rate="1. 2">30</spell> now. |Then.',
    "Hi :) |How are you? |:( Bad. |Good.",
    # Addresses.
    "Email bob.smith@example.com. |Then visit www.example.org/a.b?c=D. |Bye.",
    "Go to https://example.com/a,b;c/?q=1!x#A.B now. |Bye.",
    # Lists and lines.
    "1. First thing.\n|2. Second thing.\n|- Milk\n|- Eggs\n",
    "Steps: 1. First do this. |2. Then that.",
    "a. Alpha one\n|b. Beta two\n|IV. Four\n",
    "- **Bold**: |text here, and more.\n|- Two\n|\nEnd",
    "# Title\n|Some text\n|---\nMore",
    # Other scripts.
    "你好。|今天天气很好！|你呢？",
    "行く？|「はい。」と言った。|「いいえ。」|そうか？！|うん。",
    "とても長い説明の文章が続いていますから、|それは１，０００円です。|ありがとう。",
    "約１．５倍です。|はい。",
    "यह है। |वह था॥ |नहीं। |हाँ",
    "نعم؟ |لا، هذا ليس صحيحا. |حسنا",
    "ሰላም። |እንዴት ነህ፧ |ደህና",
    # The first piece is early, later ones are whole.
    "Sure, |I can help you with that, my friend. |Yes, of course, go on.",
    "I'm sorry, |I did not catch that.",
    "I’m sorry, |I did not catch that.",
    "Hello Anna, |how are you?",
    "In Rome, it is warm.",
    "In October, |it is warm.",
    "I do not know when it comes |but I can check it for you, if you like.",
    "Hello—|there my friend. |Yes.",
    "first — second — |third and fourth",
    "The quick brown fox that jumps over the lazy dog |and runs through the forest.",
    "The quick brown fox jumps over the lazy dog near |to the riverbank of a quiet town.",
    "Hm. |Oh. Hm. |Then go. |Yes. |Oh. Go.",
    "In Paris, the weather is mild today, |while it rains in London, so take an umbrella, |and a good coat, not a thin one.",
    "Hi! |😀 Go on.😀 |Then stop.",
]


@pytest.mark.parametrize("marked", CUTS)
def test_cuts(marked: str) -> None:
    wanted = marked.split("|")
    text = "".join(wanted)
    assert chunks(*text) == wanted
    assert chunks(text) == wanted


def test_delta_ends_right_after_a_dot() -> None:
    assert chunks("It costs 3.", "50 euro at example.", "com today. Bye.") == [
        "It costs 3.50 euro at example.com today. ",
        "Bye.",
    ]
    assert chunks("(Say done.", ")") == ["(Say done.)"]


def test_full_width_number_at_a_delta_border() -> None:
    clause = "これはとても長い説明の文章でありまして、その合計の金額は消費税を含めまして"
    pieces = chunks(clause, "１，", "０００円です。")
    assert any("１，０００円" in piece for piece in pieces)


def test_first_ideographic_sentence_is_out_before_character_5() -> None:
    chunker = SentenceChunker()
    assert [chunker.feed(char) for char in "你好。今"] == [[], [], [], ["你好。"]]


def test_flush_is_a_border_and_starts_anew() -> None:
    chunker = SentenceChunker()
    assert chunker.feed("Let me check.") + chunker.flush() == ["Let me check."]
    assert chunker.feed("Sure, it ships") == ["Sure, "]  # a first piece again
    assert chunker.flush() == ["it ships"]
    assert chunker.flush() == []


def test_cancelled_stream_gives_no_tail() -> None:
    assert SentenceChunker().feed("One. Two") == ["One. "]


def test_unclosed_quote_does_not_block() -> None:
    pieces = chunks('He said "go' + " and on" * 45)
    assert len(pieces) > 1
    assert max(map(len, pieces)) <= 221
    held = chunks('"Sure. I will do it. Everything that you have asked for is now done and more is coming')
    assert held[0] == '"Sure. I will do it. '


@pytest.mark.parametrize(
    ("text", "released"),
    [
        ("Sure.", True),
        ("Sure. ", False),  # is out already
        ("Sure,", True),
        ("(Sure.)", True),
        ("(Sure.", False),
        ('"Sure."', True),
        ("Well...", True),
        ("你好。", True),
        ("Really?!", True),
        ("No.", True),
        ("Cats etc.", True),
        ("The price is high, ", False),  # is out already
        ("Hel", False),
        ("It is ready", False),
        ("It costs 3.", False),
        ("It costs 3,", False),
        ("1.", False),
        ("Dr.", False),
        ("In the U.S.", False),
        ("J.", False),
        ("e.g.", False),
        ("Visit www.example.", False),
        ("Write to bob@example.", False),
        ("...", False),
        ("", False),
    ],
)
def test_idle(text: str, released: bool) -> None:
    chunker = SentenceChunker()
    chunker.feed(text)
    assert chunker.idle() == ([text] if released else [])


def test_idle_gives_a_fragment_that_waits() -> None:
    chunker = SentenceChunker()
    assert chunker.feed("Is it? No way. Hm. ") == ["Is it? ", "No way. "]
    assert chunker.idle() == ["Hm. "]
    assert chunker.feed("OK\n") == []
    assert chunker.idle() == ["OK\n"]
    assert chunker.idle() == chunker.flush() == []


def test_idle_holds_a_clause_that_is_too_short_for_a_later_piece() -> None:
    chunker = SentenceChunker()
    assert chunker.feed("Is it? Then we go,") == ["Is it? "]
    assert chunker.idle() == []


def test_stream_without_punctuation_is_cut_at_words() -> None:
    pieces = chunks("word " * 200)
    assert all(piece.endswith(" ") and piece.startswith("word") for piece in pieces)
    assert len(pieces[0]) <= 61
    assert max(map(len, pieces)) <= 221


def test_sizes_are_kept() -> None:
    text = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda, mu nu xi omicron pi. " * 5
    pieces = chunks(text, first_min_chars=5, first_max_chars=20, min_chars=10, max_chars=40)
    assert len(pieces[0]) <= 21
    assert max(map(len, pieces)) <= 41


def test_text_without_spaces_is_cut_between_graphemes() -> None:
    for unit in ("👨‍👩‍👧‍👦", "e\u0301", "🇩🇪", "x", "நி"):
        text = unit * (1000 // len(unit))
        pieces = chunks(text)
        assert "".join(pieces) == text
        assert max(map(len, pieces)) <= 220
        assert all(piece.count(unit) * len(unit) == len(piece) for piece in pieces), unit


def test_addresses_stay_whole() -> None:
    url = "https://example.com/" + "a.b,c;d?e=f&" * 60
    for text in (f"See {url} now.", url, f"Open\n{url}\nthen."):
        assert any(url in piece for piece in chunks(text))
    assert max(map(len, chunks("https://" + "x" * 9000))) <= 2049


def test_links_and_code_stay_whole() -> None:
    link = "[a link text of many words that goes on for a while. Yes, it does](https://example.com/a)"
    assert any(link in piece for piece in chunks(f"Some words, then {link} and more."))
    code = "`one two three four five six seven eight nine ten eleven twelve; thirteen. Fourteen`"
    assert any(code in piece for piece in chunks(f"Some words, then {code} and more."))


def test_whitespace_only_text() -> None:
    assert chunks(" ", "\n") == [" \n"]
    assert chunks() == []
    assert chunks("", "") == []


# The contract on arbitrary text.

PARTS = st.sampled_from(
    ". , ; : ! ? … ... ， 。 ！ 、 「 」 ( ) [ ] \" ' ` ``` < > </think> <think> * ** - — – # | / @ & "
    "Dr. U.S. e.g. No. etc. a.m. I. 1. 3.14 9:30 5 １ it The and but Then Mai IV https://a.b/c www. "
    "x@y.z ](http://a) 你 好 क । é 😀 👨‍👩‍👧 \u0301 \ud800 \u200b".split(" ")
)
TEXTS = st.one_of(
    st.text(st.characters(), max_size=300),  # lone surrogates included
    st.lists(st.one_of(PARTS, st.sampled_from([" ", "\n", " ", "\t", "\u00a0"])), max_size=200).map("".join),
)
SIZES = st.sampled_from([{}, {"first_min_chars": 3, "first_max_chars": 9, "min_chars": 5, "max_chars": 20}])


@settings(max_examples=400, deadline=None)
@given(TEXTS, SIZES, st.randoms(use_true_random=False))
def test_pieces_depend_on_the_text_alone(text: str, sizes: dict[str, int], rng: random.Random) -> None:
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 12)))
    deltas = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = chunks(text, **sizes)
    assert chunks(*deltas, **sizes) == whole == chunks(*text, **sizes)
    assert "".join(whole) == text
    assert all(whole)
    assert not any(piece.isspace() for piece in whole[:-1] if len(piece) < 20)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(TEXTS, PARTS, st.sampled_from(["\0idle", "\0flush"])), max_size=20))
def test_nothing_is_lost_whatever_is_called(steps: list[str]) -> None:
    chunker, out = SentenceChunker(max_chars=60), []
    for step in steps:
        pieces = (
            chunker.idle()
            if step == "\0idle"
            else chunker.flush()
            if step == "\0flush"
            else chunker.feed(step)
        )
        if step == "\0idle":
            # Never half a word.
            assert all(
                regex.search(r"[\p{P}\p{S}\p{M}\p{Cf}]\s*\Z|[\n\u2028\u2029]\s*\Z", piece) for piece in pieces
            )
        out += pieces
    out += chunker.flush()
    assert "".join(out) == "".join(step for step in steps if step not in ("\0idle", "\0flush"))
    assert all(out)


WORDS = st.text("abcdefghijklmnoprstuvwyz", min_size=5, max_size=9)


@given(st.lists(WORDS, min_size=2, max_size=8), st.sampled_from(".!?"), st.lists(WORDS, max_size=4))
def test_the_first_sentence_is_out_with_the_space_after_it(
    words: list[str], mark: str, more: list[str]
) -> None:
    chunker = SentenceChunker(first_max_chars=200)
    first = " ".join(words).capitalize() + mark + " "
    assert "".join(chunker.feed(first)) == first
    assert "".join(chunker.feed(" ".join(more))) == ""


@settings(deadline=None)
@given(TEXTS, SIZES)
def test_pieces_are_bounded(text: str, sizes: dict[str, int]) -> None:
    bound = sizes.get("max_chars", 220)
    for piece in chunks(text, **sizes):
        assert len(piece) <= bound + 1 or "http" in piece or "www." in piece


@pytest.mark.parametrize("unit", ["a", " ", ".", "(", '"a. ', "U.S. ", "1. ", "[a ", "`a ", "<a ", "e\u0301"])
def test_the_unsent_tail_is_bounded(unit: str) -> None:
    """So that the work per character is, too."""
    chunker = SentenceChunker()
    out = 0
    for count, char in enumerate(unit * 800, 1):
        out += sum(map(len, chunker.feed(char)))
        assert count - out <= 221


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("I'm sorry for the confusion, we have no pool.", "I'm sorry "),
        ("I\u2019m sorry for the confusion, we have no pool.", "I\u2019m sorry "),
        ("Yes you can bring your dog along.", "Yes "),
        ("Yesterday we had no room free at all.", "Yesterday we had no room free "),
        ("I'm sorrythat was a slip, and so was this.", "I'm sorrythat was a slip, "),
        ("(Yes you can) bring your dog along.", "(Yes you can) bring your dog "),
    ],
)
def test_an_opening_of_the_agent_is_the_first_piece_comma_or_not(text: str, first: str) -> None:
    chunker = SentenceChunker(first_max_chars=32, openings=["i'm sorry", "Yes"])
    pieces = [piece for char in text for piece in chunker.feed(char)] + chunker.flush()
    assert pieces[0] == first
    assert "".join(pieces) == text


def test_an_opening_counts_at_the_beginning_only() -> None:
    chunker = SentenceChunker(openings=["I'm sorry"])
    pieces = chunker.feed("Well, I'm sorry for that. I'm sorry for this. ") + chunker.flush()
    assert pieces == ["Well, ", "I'm sorry for that. ", "I'm sorry for this. "]

"""English for the voice: what espeak reads wrongly ("$500" as "dollar five hundred") in words.

Digits that espeak reads well stay digits: cardinals, decimals, ordinals such as "3rd". Dates with
slashes follow American use, month first. Every rule is a pattern with bounded repeats, anchored where
a number or word begins, so that the work is linear in the text; the order of `RULES` matters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen".split()
)
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
ORDINALS = "- first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
MONTHS = "January February March April May June July August September October November December".split()
ABBREVIATIONS = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Prof": "Professor", "Rev": "Reverend", "Gen": "General",
    "Col": "Colonel", "Capt": "Captain", "Lt": "Lieutenant", "Sgt": "Sergeant", "Hon": "Honorable",
    "Gov": "Governor", "Sen": "Senator", "Rep": "Representative", "Pres": "President", "Jr": "Junior",
    "Sr": "Senior", "Mt": "Mount", "Ft": "Fort", "Ave": "Avenue", "Rd": "Road", "Blvd": "Boulevard",
    "Inc": "Incorporated", "Ltd": "Limited", "Corp": "Corporation", "Co": "Company", "Bros": "Brothers",
    "Dept": "Department", "dept": "department", "Univ": "University", "vs": "versus",
    "approx": "approximately",
    "e.g": "for example", "i.e": "that is", "etc": "et cetera", "cf": "compare", "et al": "and others",
    "a.k.a": "also known as", "min": "minimum", "max": "maximum", "tel": "telephone", "Tel": "telephone",
    "ext": "extension", "Ext": "extension", "incl": "including", "Mon": "Monday", "Tue": "Tuesday",
    "Tues": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday", "Thurs": "Thursday", "Fri": "Friday",
    "Feb": "February", "Aug": "August", "Sept": "September", "Sep": "September", "Oct": "October",
    "Nov": "November", "Dec": "December", "Jan": "January",
}  # fmt: skip
CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"), "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"), "¥": ("yen", "yen", "", ""),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}  # fmt: skip
CURRENCY_CODES = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹"}
SCALES = {"k": "thousand", "m": "million", "bn": "billion", "b": "billion", "tn": "trillion"}
_UNIT_NAMES = {
    "kilometer": "km", "centimeter": "cm", "millimeter": "mm", "meter": "m", "mile": "mi", "yard": "yd",
    "kilogram": "kg", "milligram": "mg", "gram": "g", "pound": "lb lbs", "ounce": "oz", "milliliter": "ml mL",
    "liter": "l L", "kilobyte": "kB KB", "megabyte": "MB", "gigabyte": "GB", "terabyte": "TB", "watt": "W",
    "kilowatt": "kW", "kilowatt hour": "kWh", "milliamp hour": "mAh", "volt": "V", "decibel": "dB",
    "millisecond": "ms", "second": "sec secs", "minute": "min mins", "hour": "hr hrs", "kilocalorie": "kcal",
    "square meter": "m²", "square kilometer": "km²", "cubic meter": "m³",
}  # fmt: skip
UNITS = {sign: (name, f"{name}s") for name, signs in _UNIT_NAMES.items() for sign in signs.split()} | {
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "m/s": ("meter per second", "meters per second"),
    "mph": ("mile per hour", "miles per hour"),
    "ft": ("foot", "feet"),
    "sqft": ("square foot", "square feet"),
    **{sign: (name, name) for sign, name in (("Hz", "hertz"), ("kHz", "kilohertz"), ("MHz", "megahertz"))},
    "GHz": ("gigahertz", "gigahertz"),
}
"""One of them, more of them."""
NUMERALS = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8, "IX": 9, "X": 10}
NUMERALS |= {"XI": 11, "XII": 12, "XIII": 13, "XIV": 14, "XV": 15, "XVI": 16, "XVII": 17, "XVIII": 18}
FRACTIONS = dict(
    zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅛⅜⅝⅞", "1/2 1/3 2/3 1/4 3/4 1/5 2/5 3/5 4/5 1/6 1/8 3/8 5/8 7/8".split(), strict=True)
)
SIGNS = {
    "&": "and", "@": "at", "+": "plus", "=": "equals", "×": "times", "÷": "divided by", "±": "plus or minus",
    "≈": "about", "≤": "at most", "≥": "at least", "≠": "is not", "%": "percent", "°": "degrees",
    "√": "square root of", "∞": "infinity", "π": "pi",
}  # fmt: skip
SIGNS |= {sign: "" for sign in "$£€¥₹"}

_Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
_END = r"(?:(?P<end>\.(?=\W{0,10}\Z))|\.)"
"""The dot of an abbreviation. The group has it where it ends the text as well: there it is kept."""
_YEAR = r"(?:1[1-9]|20)\d\d"


def _words(number: int) -> str:
    """0 to 99."""
    if number < 20:
        return ONES[number]
    return TENS[number // 10] + (f"-{ONES[number % 10]}" if number % 10 else "")


def year(digits: str) -> str:
    """A year of four digits as it is said: 1908 is nineteen oh eight."""
    century, rest = int(digits[:2]), int(digits[2:])
    if century % 10 == 0 and rest < 10:
        return f"{_words(century // 10)} thousand" + (f" {_words(rest)}" if rest else "")
    return f"{_words(century)} " + (
        "hundred" if not rest else f"oh {ONES[rest]}" if rest < 10 else _words(rest)
    )


def ordinal(number: int) -> str:
    suffix = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def digits(text: str) -> str:
    """Digit by digit, a comma between groups."""
    return ", ".join(" ".join(group) for group in re.findall(r"\d+", text))


def _phone(match: re.Match[str]) -> str:
    return ("plus " if match[0].startswith("+") else "") + digits(match[0])


def _date(month: str, day: str, in_year: str | None, match: re.Match[str]) -> str:
    number, date = int(month), int(day)
    if not (1 <= number <= 12 and 1 <= date <= 31):
        return match[0]
    return f"{MONTHS[number - 1]} {ordinal(date)}" + (f", {year(in_year)}" if in_year else "")


def _slashed(match: re.Match[str]) -> str:
    first, second = match[1], match[2]
    return _date(second, first, match[3], match) if int(first) > 12 else _date(first, second, match[3], match)


def _named_date(match: re.Match[str]) -> str:
    name = next(month for month in MONTHS if month.startswith(match[1][:3]))
    if int(match[2]) > 31:
        return match[0]
    return f"{name} {ordinal(int(match[2]))}" + (f", {year(match[3])}" if match[3] else "")


def _time(match: re.Match[str]) -> str:
    hour, minute, half = match[1], match[2], match[3]
    if int(hour) > 24 or int(minute or 0) > 59 or not (minute or half):
        return match[0]
    spoken = str(int(hour))
    if minute and int(minute):
        spoken += f" {int(minute)}" if int(minute) > 9 else f" oh {int(minute)}"
    elif not half:
        spoken += " o'clock" if 1 <= int(hour) <= 12 else " hundred hours"
    if half:
        spoken += f" {half.upper()}M"
    return spoken + (match["end"] or "")


def _money(match: re.Match[str]) -> str:
    sign, amount, part, scale = match["sign"], match["whole"], match["part"], match["scale"]
    one, many, cent, cents = CURRENCIES[CURRENCY_CODES.get(sign, sign)]
    country = {"US": "US ", "A": "Australian ", "AU": "Australian ", "C": "Canadian ", "CA": "Canadian "}
    before = country.get(match.groupdict().get("country") or "", "")
    if scale:
        return f"{amount}{part or ''} {SCALES.get(scale.lower(), scale)} {before}{many}"
    if part and len(part) == 3 and cent:
        small = int(part[1:])
        minor = f"{small} {cent if small == 1 else cents}" if small else ""
        if minor and not int(amount.replace(",", "")):
            return minor
        major = f"{amount} {before}{one if amount == '1' else many}"
        return f"{major} and {minor}" if minor else major
    return f"{amount}{part or ''} {before}{one if amount == '1' and not part else many}"


def _unit(match: re.Match[str]) -> str:
    single, plural = UNITS[match["unit"]]
    return f"{match['count']} {single if match['count'] == '1' else plural}" + (match["end"] or "")


def _duration(match: re.Match[str]) -> str:
    named = zip(match.groups(), ("hour", "minute", "second"), strict=True)
    return " ".join(
        f"{int(count)} {name}{'' if int(count) == 1 else 's'}" for count, name in named if int(count)
    )


def _fraction(match: re.Match[str]) -> str:
    whole, above, below = match[1], int(match[2]), int(match[3])
    if not 0 < above < below or (above, below) == (9, 11):
        return f"{whole or ''} {above} {below}".strip()
    if below == 2:
        return f"{whole} and a half" if whole else "one half"
    if below in (7, 10, 11) or below > 12:
        return f"{whole or ''} {above} out of {below}".strip()
    name = "quarter" if below == 4 else ORDINALS[below]
    spoken = f"{ONES[above]} {name}{'s' if above > 1 else ''}"
    return f"{whole} and {spoken}" if whole else spoken


def _years(match: re.Match[str]) -> str:
    return f"{year(match[1])} to {year(match[2])}" if match[2] else year(match[1])


def _decade(match: re.Match[str]) -> str:
    century, ten = match[1], int(match[2])
    name = TENS[ten][:-1] + "ies" if ten > 1 else {0: "hundreds", 1: "tens"}[ten]
    if century and ten == 0 and int(century) % 10 == 0:
        return f"{_words(int(century) // 10)} thousands"
    return f"{_words(int(century))} {name}" if century else name


def _identifier(match: re.Match[str]) -> str:
    """A run of five and more digits is a code rather than a quantity, unless it is a round number."""
    run = match[0]
    quantity = run[0] != "0" and run.endswith("00") and len(run) < 13
    return run if quantity else digits(run)


def _abbreviation(match: re.Match[str]) -> str:
    return ABBREVIATIONS[match[1]] + (match["end"] or "")


def _letters(match: re.Match[str]) -> str:
    return match[1].replace(".", "") + (match["end"] or "")


def _numeral(match: re.Match[str]) -> str:
    return f"{match[1]} {_words(NUMERALS[match[2]])}"


def _reign(match: re.Match[str]) -> str:
    number = NUMERALS[match[2]]
    return f"{match[1]} the {ORDINALS[number] if number < len(ORDINALS) else ordinal(number)}"


def _sign(match: re.Match[str]) -> str:
    return f" {SIGNS[match[0]]} "


def _rules(*rules: tuple[str, str | Callable[[re.Match[str]], str]]) -> tuple[_Rule, ...]:
    return tuple((re.compile(pattern), spoken) for pattern, spoken in rules)


def _any(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True)))


_SCALE = r"(?:\s?(?P<scale>thousand|million|billion|trillion|[kKmMbB]|bn|tn)(?!\w))?"
_AMOUNT = r"(?P<whole>\d{1,3}(?:,\d{3}){1,5}|\d{1,15})(?P<part>\.\d{1,4})?(?![\d])"
_MONTH = (
    r"(Jan(?:uary|\.)?|Feb(?:ruary|\.)?|Mar(?:ch|\.)?|Apr(?:il|\.)?|May|Jun[e.]?|Jul[y.]?|Aug(?:ust|\.)?|"
)
_MONTH += r"Sept?(?:ember|\.)?|Oct(?:ober|\.)?|Nov(?:ember|\.)?|Dec(?:ember|\.)?)"
_PARTS = (
    "World War|Chapter|Part|Volume|Vol|Act|Scene|Section|Article|Phase|Type|Class|Title|Super Bowl|Appendix|"
    "Level"
)
_KINGS = (
    "Henry|Louis|Elizabeth|George|Charles|James|William|Edward|Richard|Mary|Paul|Benedict|Pius|Nicholas|Catherine|"
    "Alexander|Frederick|Philip|Napoleon|Leo|Gregory|Ramses|Harald|Gustav|Christian|Ferdinand|Francis|Ivan|Peter"
)

RULES = _rules(
    # Numbers that are names: telephones, codes.
    (
        r"(?<![\w.+\-])(?:\+\d{1,3}[ .\-]?)?(?:1[ .\-])?"
        r"(?:\(\d{3}\) ?|\d{3}[ .\-])\d{3}[ .\-]\d{4}(?![\w\-])",
        _phone,
    ),
    (r"(?<![\w.+\-])\d{3}-\d{4}(?![\w\-])", _phone),
    (r"(?<![\w.])\+\d[\d ().\-]{6,18}\d(?!\w)", _phone),
    (
        r"(?i:\b(zip|pin|code|extension|ext\.?|account|tracking|confirmation|reference)"
        r"(?: number| code)?(?: is|:)? #?)"
        r"(\d{3,12})(?![\w.,]\d|\w)",
        lambda match: match[0][: match.start(2) - match.start()] + digits(match[2]),
    ),
    (r"\b([A-Z]{2} )(\d{5})(-\d{4})?(?![\w.,]\d|\w)", lambda m: m[1] + digits(m[2] + (m[3] or ""))),
    # Dates.
    (r"(?<![\w.\-])(\d{4})-(\d\d)-(\d\d)(?![\w\-])", lambda m: _date(m[2], m[3], m[1], m)),
    (r"(?<![\w.])(\d{1,2})\.(\d{1,2})\.(\d{4})(?!\w)", lambda m: _date(m[2], m[1], m[3], m)),
    (r"(?<![\w./])(\d{1,2})/(\d{1,2})/(\d{4})(?![\w/])", _slashed),
    (rf"\b{_MONTH} (\d{{1,2}})(?:st|nd|rd|th)?(?:,? ({_YEAR}))?(?![\w:/%]|[.,]\d)", _named_date),
    # Times.
    (rf"(?<![\w.:,])(\d{{1,2}})(?::(\d\d))?\s?([aApP])(?:\.\s?[mM]{_END}|[mM]\b(?P<_>))", _time),
    (r"(?<![\w.:,])(\d{1,2}):(\d\d)(?P<half>)(?P<end>)(?![\w:])", _time),
    (rf"\b([aApP]\.[mM]){_END}", lambda m: m[1].replace(".", "").upper() + (m["end"] or "")),
    (r"(?<![\w.:,])(\d{1,2}):(\d\d):(\d\d)(?![\w:])", _duration),
    (r"(?<=\d):(?=\d)", " to "),
    # Money.
    (r"(?<![\w.,])([$£€¥₹])(\d[\d,.]{0,12})\s?[-–]\s?[$£€¥₹]?(?=\d)", r"\2 to \1"),
    (rf"(?<![\w.,])(?P<country>US|AU|A|CA|C)?(?P<sign>[$£€¥₹])\s?{_AMOUNT}{_SCALE}", _money),
    (rf"(?<![\w.,]){_AMOUNT}{_SCALE}\s?(?P<sign>[$£€¥₹]|(?:USD|EUR|GBP|JPY|INR)(?!\w))", _money),
    (r"(?<=[a-z\d])\s?/\s?(?=(?:hour|day|week|month|year|person|night|minute|second|kg|lb|GB)\b)", " per "),
    # Quantities.
    (r"(?<![\w)])[-\u2212](?=\.?\d)", " minus "),
    (r"\s?°\s?C\b", " degrees Celsius"),
    (r"\s?°\s?F\b", " degrees Fahrenheit"),
    (r"(?<![\w.,/])(\d{1,4} )?(\d{1,3})/(\d{1,3})(?![\w/]|[.,]\d)", _fraction),
    (
        rf"(?<![\w.])(?P<count>(?:\d{{1,3}}(?:,\d{{3}}){{1,5}}|\d{{1,15}})(?:\.\d{{1,10}})?|half|quarters?)\s?"
        rf"(?P<unit>{_any(UNITS)})(?![\w/'’])"
        r"(?:(?P<end>\.(?=\W{0,10}\Z|\s[A-Z]))|(?<=hr|in|ec|rs|cs|ns|lb|bs|oz|ft)\.)?",
        _unit,
    ),
    # Years.
    (rf"(?<![\w.,$#:/\-])({_YEAR})\s?[-–]\s?({_YEAR})(?![\w\-]|[.,]\d)", _years),
    (r"(?<![\w.,])['’]?(\d\d)?(\d)0['’]?s\b", _decade),
    (
        r"\b((?i:in|since|until|till|circa|year|during|early|late|mid|by|from)[ \-]|"
        rf"(?:{'|'.join(MONTHS)}),? )({_YEAR})"
        r"(?![\w\-%/:]|[.,]\d| (?:people|years|days|hours|times|points|percent|miles|dollars|\w{1,8}meters))",
        lambda m: m[1] + year(m[2]),
    ),
    (r"(?<![\w.,$#:/+*=\-])((?:19|20)\d\d)()(?![\w%/:\-]|[.,]\d)", _years),
    # Other numbers.
    (r"(?<![\w.,])(?:\d{5,15}|0\d{1,15})(?![\w:/]|[.,]\d)", _identifier),
    (r"(?<=\d)\s?–\s?(?=\d)|(?<![\d\-]\d\d\d)(?<=\d)-(?=[\d$£€])", " to "),
    (r"(?<=\d)\s[-−]\s(?=\d)", " minus "),
    (r"(?<=\d)\s?x\s?(?=\d)", " by "),
    (r"(?<=\d)\s?/\s?(?=\d)", " "),
    (r"(?<=\w)\^(?=\w)", " to the power of "),
    (r"(?<=\d)'(\d{1,2})\"", r" foot \1"),
    (r"(?<=\w)²", " squared"),
    (r"(?<=\w)³", " cubed"),
    (r"(?<![\w~])~\s?(?=[\d$£€])", "about "),
    (r"(?<=\d)\s?<\s?(?=\d)|(?<=\w)\s<\s(?=\w)", " less than "),
    (r"(?<=\d)\s?>\s?(?=\d)|(?<=\w)\s>\s(?=\w)", " greater than "),
    (r"#\s?(?=\d)", "number "),
    (r"(?<!\w)#(?=[A-Za-z])", "hashtag "),
    # Abbreviations.
    (r"\b(?:No|no|Nr)\.\s?(?=\d)", "number "),
    (r"\b(?:Nos|nos)\.\s?(?=\d)", "numbers "),
    (r"\b[Ff]ig\.\s?(?=\d)", "figure "),
    (r"\bpp?\.\s?(?=\d)", "page "),
    (r"\b[Vv]ol\.\s?(?=\d)", "volume "),
    (r"(?<=[a-z] )Dr\.(?=\W{0,10}\Z)", "Drive."),
    (r"(?<=[a-z] )Dr\.(?=,| [a-z])", "Drive"),
    (r"\bDr\.", "Doctor"),
    (r"(?<=[A-Za-z\d] )St\.(?=\W{0,10}\Z)", "Street."),
    (r"(?<=[A-Za-z\d] )St\.(?=,| [a-z])", "Street"),
    (r"\bSt\.(?= [A-Z])", "Saint"),
    (r"\bMs(?= [A-Z])", "Miz"),
    (rf"(?<![\w.])({_any(ABBREVIATIONS)}){_END}(?!\w)", _abbreviation),
    (rf"(?<![\w.])((?:[A-Z]\.){{1,5}}[A-Z]|Ph\.D){_END}(?!\w)", _letters),
    (r"(?<![\w.'’])([A-Z])\.(?= ?[A-Z])", r"\1 "),
    (rf"\b({_PARTS}) (XVI{{0,3}}|XI{{1,3}}|XI?V|IX|IV|V?I{{1,3}}|[VX])\b(?!['’])", _numeral),
    (rf"\b({_KINGS}) (XVI{{0,3}}|XI{{1,3}}|XI?V|IX|IV|VI{{0,3}}|II{{1,2}}|X)\b(?!['’])", _reign),
    (r"\bWWII\b", "World War two"),
    (r"\bWWI\b", "World War one"),
    (r"\b[Ww]/[Oo]\b", "without"),
    (r"\b[Ww]/(?=\s?\w)", "with "),
    (r"\b[Nn]/[Aa]\b", "not applicable"),
    (r"\band/or\b", "and or"),
    (r"\b([a-z]{2,15})/([a-z]{2,15})\b(?!/)", r"\1 or \2"),
    (r"(?<=\w)/(?=\w)", " "),
    (rf"[{re.escape(''.join(SIGNS))}]", _sign),
)
_FRACTION_SIGN = re.compile(rf"(\d?)\s?([{''.join(FRACTIONS)}])")


def normalise(text: str) -> str:
    """English text without markup, with what espeak misreads written out. Raises nothing; whitespace may
    come out doubled. Linear in the text, and the result is at most some twenty times as long."""
    text = _FRACTION_SIGN.sub(lambda m: f"{m[1]}{' ' if m[1] else ''}{FRACTIONS[m[2]]}", text)
    for pattern, spoken in RULES:
        text = pattern.sub(spoken, text)
    return text

"""Generated questions with known answers, made for a small model: seeded, distinct, as many as needed.

They make it possible to try shadowprice without a benchmark. A small model answers some of them in ten tokens and
reaches any cap on others; some it always answers correctly, some never. A forecast can learn these
differences. Everything is computed from the seed; nothing is read from a file.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shadowprice.errors import InputError

Grader = Literal["numeric", "exact"]
Split = Literal["train", "eval"]

_LARGEST = 20_000  # with more tasks the small kinds are exhausted, and the mix would change


@dataclass(frozen=True)
class Task:
    """One question. `id` is made from the prompt: the same question has the same id under every seed."""

    id: str
    kind: str
    prompt: str
    answer: str
    grader: Grader


def tasks(seed: int, count: int, *, split: Split | None = None) -> list[Task]:
    """`count` different tasks, in an order drawn from `seed`; a shorter list begins a longer one.

    No two prompts are equal, even if case and white space are ignored. `split` selects the training or
    the evaluation half of all prompts: the two halves never share one, under any seeds.
    """
    if split not in (None, "train", "eval"):
        raise InputError(f"split is {split!r}", fix="choose train or eval")
    if count > _LARGEST:
        raise InputError(f"{count} tasks are too many", fix=f"ask for {_LARGEST} or fewer")
    draw = random.Random(f"shadowprice tasks {seed}")  # seeding with a text is the same in every version of Python
    kinds, weights = list(_KINDS), [weight for _, weight in _KINDS.values()]
    seen: set[str] = set()
    generated: list[Task] = []
    while len(generated) < count:
        kind = draw.choices(kinds, weights)[0]
        prompt, answer, grader = _KINDS[kind][0](draw)
        key = _normal(prompt)
        if key not in seen and split in (None, split_of(prompt)):
            seen.add(key)
            generated.append(Task(f"{kind}-{_digest(prompt):016x}", kind, prompt, answer, grader))
    return generated


def split_of(prompt: str) -> Split:
    """The half a prompt belongs to; it depends on the prompt alone, so it never changes."""
    return "eval" if _digest(prompt) % 2 else "train"


def _normal(prompt: str) -> str:
    return "".join(prompt.casefold().split())


def _digest(prompt: str) -> int:
    return int.from_bytes(hashlib.sha256(_normal(prompt).encode()).digest()[:8], "big")


# --- the kinds: each draws (prompt, answer, grader) -------------------------------------------------

_Made = tuple[str, str, Grader]

_COUNTRIES = (
    "Afghanistan: Kabul|Albania: Tirana|Algeria: Algiers|Angola: Luanda|Argentina: Buenos Aires|Armenia: Yerevan|"
    "Australia: Canberra|Austria: Vienna|Azerbaijan: Baku|Bahrain: Manama|Bangladesh: Dhaka|Belarus: Minsk|"
    "Belgium: Brussels|Bhutan: Thimphu|Botswana: Gaborone|Brazil: Brasilia|Bulgaria: Sofia|Cambodia: Phnom Penh|"
    "Cameroon: Yaounde|Canada: Ottawa|Chad: N'Djamena|Chile: Santiago|China: Beijing|Colombia: Bogota|"
    "Costa Rica: San Jose|Croatia: Zagreb|Cuba: Havana|Cyprus: Nicosia|Denmark: Copenhagen|Ecuador: Quito|"
    "Egypt: Cairo|Estonia: Tallinn|Ethiopia: Addis Ababa|Fiji: Suva|Finland: Helsinki|France: Paris|"
    "Georgia: Tbilisi|Germany: Berlin|Ghana: Accra|Greece: Athens|Guatemala: Guatemala City|Guyana: Georgetown|"
    "Haiti: Port-au-Prince|Hungary: Budapest|Iceland: Reykjavik|India: New Delhi|Indonesia: Jakarta|Iran: Tehran|"
    "Iraq: Baghdad|Ireland: Dublin|Italy: Rome|Jamaica: Kingston|Japan: Tokyo|Jordan: Amman|Kazakhstan: Astana|"
    "Kenya: Nairobi|Kuwait: Kuwait City|Laos: Vientiane|Latvia: Riga|Lebanon: Beirut|Liberia: Monrovia|"
    "Libya: Tripoli|Lithuania: Vilnius|Luxembourg: Luxembourg|Madagascar: Antananarivo|Malaysia: Kuala Lumpur|"
    "Mali: Bamako|Malta: Valletta|Mexico: Mexico City|Moldova: Chisinau|Mongolia: Ulaanbaatar|Morocco: Rabat|"
    "Mozambique: Maputo|Namibia: Windhoek|Nepal: Kathmandu|New Zealand: Wellington|Nicaragua: Managua|"
    "Nigeria: Abuja|Norway: Oslo|Oman: Muscat|Pakistan: Islamabad|Panama: Panama City|Paraguay: Asuncion|"
    "Peru: Lima|the Philippines: Manila|Poland: Warsaw|Portugal: Lisbon|Qatar: Doha|Romania: Bucharest|"
    "Russia: Moscow|Rwanda: Kigali|Saudi Arabia: Riyadh|Senegal: Dakar|Serbia: Belgrade|Singapore: Singapore|"
    "Slovakia: Bratislava|Slovenia: Ljubljana|Somalia: Mogadishu|South Korea: Seoul|Spain: Madrid|Sudan: Khartoum|"
    "Sweden: Stockholm|Syria: Damascus|Thailand: Bangkok|Tunisia: Tunis|Turkey: Ankara|Uganda: Kampala|"
    "Ukraine: Kyiv|the United Kingdom: London|the United States: Washington, D.C.|Uruguay: Montevideo|"
    "Uzbekistan: Tashkent|Venezuela: Caracas|Vietnam: Hanoi|Yemen: Sanaa|Zambia: Lusaka|Zimbabwe: Harare"
)
_CAPITALS = dict(pair.split(": ") for pair in _COUNTRIES.split("|"))
_NAMES = "Ada Ben Carla David Elena Farid Grace Hugo Ines Jonas Kofi Lena Marco Nadia Omar Priya Rosa Sam Tara Yusuf"
_THINGS = "apples books coins eggs marbles pencils shells stamps stickers tickets"
_NOUNS = (
    "apple banana bottle bridge butter candle carpet castle cheese circle coffee copper cotton desert dinner doctor "
    "engine family farmer finger flower forest garden guitar hammer harbor island jacket kitchen ladder lemon letter "
    "market mirror monkey mountain needle ocean orange paper pepper picture planet pocket potato rabbit river school "
    "shadow silver spider spoon summer sweater table teacher ticket tomato tunnel umbrella valley village violin "
    "wallet water window winter yellow zebra"
)
_VERBS = "carries finds follows holds likes needs paints sees sells wants"
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_UNITS = (
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("weeks", "days", 7),
    ("years", "months", 12),
    ("meters", "centimeters", 100),
    ("centimeters", "millimeters", 10),
    ("kilometers", "meters", 1000),
    ("kilograms", "grams", 1000),
    ("feet", "inches", 12),
    ("dozens", "pieces", 12),
)


def _pick(draw: random.Random, words: str) -> str:
    return draw.choice(words.split())


def _size(draw: random.Random, *most: int) -> int:
    """A number from 1 to one of `most`, so that small numbers are common."""
    return draw.randint(1, draw.choice(most))


def _capital(draw: random.Random) -> _Made:
    # The whole sentence is the answer: a small model always writes it.
    country = draw.choice(list(_CAPITALS))
    answer = f"The capital of {country} is {_CAPITALS[country]}"
    form = draw.choice(
        (
            "What is the capital of {country}?",
            "Which city is the capital of {country}?",
            "What is the capital city of {country}?",
            'Complete the sentence: "The capital of {country} is"',
            'Answer in the form "The capital of ... is ...": What is the capital of {country}?',
            "Describe the history of {country} in detail. Then give its capital, in a line that begins with Answer:",
        )
    )
    return form.format(country=country), answer if "detail" not in form else _CAPITALS[country], "exact"


def _sum(draw: random.Random) -> _Made:
    a, b = _size(draw, 9, 9, 20, 99, 999), _size(draw, 9, 9, 20, 99)
    if draw.random() < 0.2:
        a, b = max(a, b), min(a, b)
        form, answer = draw.choice(("What is {a} - {b}?", "Calculate {a} minus {b}.", "Subtract {b} from {a}.")), a - b
    else:
        forms = ("What is {a} + {b}?", "What is {a} plus {b}?", "What is the sum of {a} and {b}?", "{a} + {b} = ?")
        form, answer = draw.choice(forms), a + b
    return form.format(a=a, b=b), str(answer), "numeric"


def _half(draw: random.Random) -> _Made:
    a = _size(draw, 20, 99, 999)
    form = draw.choice(("What is half of {b}?", "What is {b} divided by 2?", "What is one half of {b}?"))
    return form.format(b=2 * a), str(a), "numeric"


def _product(draw: random.Random) -> _Made:
    a, b = draw.randint(2, draw.choice((6, 10, 20, 99))), draw.randint(2, draw.choice((5, 12)))
    form = draw.choice(("What is {a} times {b}?", "Calculate {a} x {b}.", "What is the product of {a} and {b}?"))
    return form.format(a=a, b=b), str(a * b), "numeric"


def _one_step(draw: random.Random) -> _Made:
    name, things = _pick(draw, _NAMES), _pick(draw, _THINGS)
    a, b = draw.randint(2, draw.choice((5, 10, 10, 50))), draw.randint(2, draw.choice((4, 9)))
    form, answer = draw.choice(
        (
            (f"{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?", a + b),
            (f"{name} has {a} {things} and gets {b} more. Write the sum as an equation and give the result.", a + b),
            (f"{name} finds {a} {things}, then {b} more. What is {a} + {b}?", a + b),
            (f"{name} has {a + b} {things} and gives away {b}. How many {things} are left?", a),
            (f"{name} buys {b} boxes with {a} {things} in each. How many {things} is that?", a * b),
            (f"{name} has {2 * a} {things} and gives half of them away. What is half of {2 * a}?", a),
        )
    )
    return form, str(answer), "numeric"


def _two_steps(draw: random.Random) -> _Made:
    name, other = draw.sample(_NAMES.split(), 2)
    things, (a, b, c) = _pick(draw, _THINGS), (draw.randint(2, draw.choice((4, 12))) for _ in range(3))
    form, answer = draw.choice(
        (
            (f"{name} has {a} {things}. {other} has {b} more than {name}. How many {things} do they have "
             "together?", 2 * a + b),
            (f"{name} buys {a} bags with {b} {things} in each and finds {c} more. How many {things} does {name} "
             "have?", a * b + c),
            (f"{name} had {a + b + c} {things}, gave {b} to {other} and lost {c}. How many {things} are left?", a),
            (f"{name} sells {things} for {a} dollars each. {other} buys {b} of them and pays with {a * b + c} dollars. "
             f"How many dollars does {other} get back?", c),
        )
    )  # fmt: skip
    ending = draw.choice(("", " Think step by step.", " Explain every step, then give the answer."))
    return form + ending, str(answer), "numeric"


def _units(draw: random.Random) -> _Made:
    large, small, factor = draw.choice(_UNITS)
    n = draw.randint(2, draw.choice((5, 10, 60)))
    form = draw.choice(("How many {small} are in {n} {large}?", "Convert {n} {large} to {small}."))
    if draw.random() < 0.15:
        return form.format(small=large, n=n * factor, large=small), str(n), "numeric"
    return form.format(small=small, n=n, large=large), str(n * factor), "numeric"


def _comparison(draw: random.Random) -> _Made:
    digits = draw.randint(1, 5)
    a, b = draw.sample(range(10 ** (digits - 1), 10**digits), 2)
    form = draw.choice(
        (
            'Which is larger, {a} or {b}? Answer in the form "The larger number is ...".',
            "What is the maximum of {a} and {b}?",
            "Which of the numbers {a} and {b} is greater? Explain why, then repeat the greater number at the end.",
        )
    )
    return form.format(a=a, b=b), str(max(a, b)), "numeric"


def _sequence(draw: random.Random) -> _Made:
    step, shown = draw.choice((1, 2, 3, 4, 5, 10, 20, 25, 50, 100)), draw.randint(3, 8)
    start = step * draw.randint(1, 9) + draw.choice((0, 0, 1))
    terms = [start + step * i for i in range(shown + 1)]
    form = draw.choice(("What number comes next: {shown}?", "Which number follows {shown} if each is {step} more?"))
    return form.format(shown=", ".join(map(str, terms[:-1])), step=step), str(terms[-1]), "numeric"


def _listing(draw: random.Random) -> _Made:
    """The question determines the answer's length and its last number."""
    step, count = draw.choice((1, 1, 2, 5, 10)), draw.randint(3, draw.choice((10, 25, 60, 100)))
    first = draw.randint(1, 60) if step == 1 else step * draw.randint(1, 9)
    terms = [first + step * i for i in range(count)]
    steps = f" in steps of {step}" if step > 1 else ""
    shown = ", ".join(map(str, terms))
    form = draw.choice(
        (
            f"Repeat this list: {shown}",
            f"Copy these numbers: {shown}",
            f"Write this list again, one number per line: {shown}",
            f"Write the numbers from {first} to {terms[-1]}{steps}, separated by commas.",
        )
    )
    return form, str(terms[-1]), "numeric"


def _number(draw: random.Random) -> _Made:
    number = draw.randint(10, 10 ** draw.randint(2, 7))
    form = draw.choice(("Repeat this number and write nothing else: {it}", "Repeat the number {it}."))
    return form.format(it=number), str(number), "numeric"


def _day(draw: random.Random) -> _Made:
    today, (word, shift) = draw.randrange(7), draw.choice((("after", 1), ("before", -1)))
    event, week = _pick(draw, _NOUNS), ", ".join(_DAYS)
    begun = f"The day {word} {_DAYS[today]} is"
    answer = _DAYS[(today + shift) % 7]
    form, answer = draw.choice(
        (
            (
                f'The days of the week are {week}. Today I bought one {event}. Complete the sentence: "{begun}"',
                f"{begun} {answer}",
            ),
            (
                f'You know the word {event} and the days of the week. Complete the sentence: "{begun}"',
                f"{begun} {answer}",
            ),
            (
                f"The {event} arrived on {_DAYS[today]}. Explain which day is the day {word}. End with: Answer: <day>",
                answer,
            ),
        )
    )
    return form, answer, "exact"


def _letters(draw: random.Random) -> _Made:
    word = _pick(draw, _NOUNS)
    letter = draw.choice(word)
    form, answer = draw.choice(
        (
            (f"How many letters are in the word {word}?", len(word)),
            (f"How many times does the letter {letter} appear in the word {word}?", word.count(letter)),
        )
    )
    return form, str(answer), "numeric"


def _words(draw: random.Random) -> _Made:
    sentence = _sentence(draw, draw.randint(1, 3))
    return f'How many words are in this sentence: "{sentence}"', str(len(sentence.split())), "numeric"


def _sentence(draw: random.Random, clauses: int) -> str:
    """The farmer sees the bridge and the doctor paints the river."""
    nouns = draw.sample(_NOUNS.split(), 2 * clauses)
    phrases = [f"the {a} {_pick(draw, _VERBS)} the {b}" for a, b in zip(nouns[::2], nouns[1::2], strict=True)]
    return f"{' and '.join(phrases)}.".capitalize()


def _copy(draw: random.Random) -> _Made:
    sentence = _sentence(draw, draw.choice((1, 1, 1, 2, 2, 3, 5, 12)))
    return f"Repeat this sentence exactly, and write nothing else: {sentence}", sentence, "exact"


def _string(draw: random.Random) -> _Made:
    words = draw.sample(_NOUNS.split(), draw.randint(2, 5))
    shown, times = ", ".join(words), draw.randint(2, 6)
    form, answer = draw.choice(
        (
            (
                f"Write the word {words[0]} {times} times, separated by spaces, and nothing else.",
                " ".join(words[:1] * times),
            ),
            (f"Join these words with spaces: {shown}", " ".join(words)),
            (f"Write in capital letters: {' '.join(words)}", " ".join(words).upper()),
            (f"Write the word {words[0]} backwards.", words[0][::-1]),
            (f"Sort these words alphabetically, separated by commas: {shown}", ", ".join(sorted(words))),
        )
    )
    return form, answer, "exact"


def _ramble(draw: random.Random) -> _Made:
    a, b = _size(draw, 5, 9, 20), _size(draw, 5, 9, 20)
    topic = _pick(draw, _NOUNS)
    form, answer = draw.choice(
        (
            (f"Explain in detail, step by step, how to add {a} and {b}. Then give the result.", a + b),
            (f"Write a short story about the {topic}. At the very end of it, write: {a} + {b} = {a + b}", a + b),
            (
                f"A {topic} costs {a} dollars. Explain at length what {b} of them cost, and finish with the total.",
                a * b,
            ),
            (
                f"Tell me {_size(draw, 3, 9)} numbered facts about the {topic}. Then write the number {a}.",
                a,
            ),
        )
    )
    return form, str(answer), "numeric"


# Name -> function that makes one, weight.
_KINDS: dict[str, tuple[Callable[[random.Random], _Made], int]] = {
    "capital": (_capital, 9),
    "sum": (_sum, 12),
    "half": (_half, 8),
    "product": (_product, 7),
    "one-step": (_one_step, 13),
    "two-step": (_two_steps, 3),
    "units": (_units, 4),
    "comparison": (_comparison, 4),
    "sequence": (_sequence, 2),
    "listing": (_listing, 15),
    "number": (_number, 5),
    "day": (_day, 3),
    "letters": (_letters, 2),
    "words": (_words, 1),
    "copy": (_copy, 10),
    "string": (_string, 2),
    "ramble": (_ramble, 4),
}

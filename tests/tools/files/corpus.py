"""
A gazetteer of forty invented towns, with questions to measure retrieval.

Everything follows from a seed. The questions are the first fifty in a shuffled list. Most use other words than the
text, and every town also occurs in other towns' entries.
"""

from __future__ import annotations

import random
from typing import NamedTuple

SYNONYMS = [
    ["built", "put", "erected"],
    ["festival", "feast", "celebration"],
    ["physician", "doctor"],
    ["schoolmaster", "teacher"],
    ["earned", "salary", "paid"],
    ["fair", "market"],
    ["floods", "water", "flooded"],
    ["weighs", "heavy", "weight"],
    ["inn", "tavern"],
]

_FIRST = ["Alder", "Birch", "Cold", "Dun", "East", "Fen", "Gold", "Hazel"]
_LAST = ["by", "ford", "ham", "mere", "wick"]
_PEOPLE = ["Ann Thorne", "Giles Webb", "Ruth Carver", "John Pell", "Mary Oake", "Hugh Lamb", "Joan Reed", "Tom Sayer"]
_MONTHS = ["March", "April", "May", "June", "July", "August", "September", "October"]
_PLANTS = ["willow bark", "yarrow", "sage", "nettle", "elderflower", "comfrey", "thyme", "feverfew"]
_GRAINS = ["rye", "barley", "oats", "spelt", "buckwheat", "wheat"]
_METALS = ["bronze", "iron", "brass", "silvered copper"]
_GOODS = ["wool", "salt", "honey", "leather", "pottery", "geese", "linen", "candles"]
_RIVERS = ["Ash", "Brent", "Cole", "Dove", "Ember", "Flint"]

# Facts in an entry, and questions about them. A sentence without its town only names the neighbours.
_FACTS = [
    ("The bridge at {town} was built in {year} by {person}.", "When was the bridge at {town} put up?"),
    ("The harvest festival of {town} takes place in {month}.", "In which month is the feast of {town}?"),
    ("The physician {person} treated fevers with {plant}.", "What did the doctor of {town} give against fevers?"),
    ("The schoolmaster earned {number} crowns a year.", "What was the salary of the teacher in {town}?"),
    ("The mill in {town} grinds {grain}.", "What does the mill in {town} grind?"),
    ("Its church has a bell of {metal} that weighs {number} pounds.", "How heavy is the bell in {town}?"),
    ("At the fair people sell mostly {goods}.", "What is sold at the market of {town}?"),
    ("The river {river} floods the meadows every {few} years.", "How often is the land at {town} under water?"),
    ("The inn of {town} is called the {goods} and {plant}.", "What is the name of the tavern in {town}?"),
]
_FILLING = [
    "The road from {town} to {neighbour} is steep, and carts go by way of {other} in winter.",
    "Travellers who come from {neighbour} praise the view over the valley.",
    "In {town} the houses are of grey stone, and their roofs of slate as in {other}.",
    "The town council meets on Mondays, and its minutes are kept in a chest of oak.",
    "A hedge of hawthorn stands between the common of {town} and that of {neighbour}.",
    "Nothing is known of the years before the great fire.",
]


class Question(NamedTuple):
    """A question, the file with the answer, and the answering sentence."""

    text: str
    file: str
    answer: str


def corpus(seed: int = 7, count: int = 50) -> tuple[dict[str, str], list[Question]]:
    """Return the entries by the names of their files, and the questions."""
    chance = random.Random(seed)
    towns = [first + last for first in _FIRST for last in _LAST]
    entries: dict[str, str] = {}
    questions: list[Question] = []
    for town in towns:
        sentences = []
        neighbour, other = chance.sample([name for name in towns if name != town], 2)
        for statement, question in chance.sample(_FACTS, len(_FACTS)):
            values = {
                "town": town,
                "year": chance.randrange(1500, 1800),
                "person": chance.choice(_PEOPLE),
                "month": chance.choice(_MONTHS),
                "plant": chance.choice(_PLANTS),
                "number": chance.randrange(40, 900),
                "grain": chance.choice(_GRAINS),
                "metal": chance.choice(_METALS),
                "goods": chance.choice(_GOODS),
                "river": chance.choice(_RIVERS),
                "few": chance.choice(["two", "three", "five", "seven"]),
            }
            answer = statement.format(**values)
            sentences += [answer, chance.choice(_FILLING).format(town=town, neighbour=neighbour, other=other)]
            questions.append(Question(question.format(town=town), f"{town.lower()}.txt", answer))
        paragraphs = [" ".join(sentences[start : start + 6]) for start in range(0, len(sentences), 6)]
        entries[f"{town.lower()}.txt"] = f"{town}\n\n" + "\n\n".join(paragraphs)
    chance.shuffle(questions)
    return entries, questions[:count]

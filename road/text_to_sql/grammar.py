"""The grammar of questions about tables: nouns, kinds of questions, and made-up words.

All tokens are separated by spaces, also inside quotes, so that a name is the same token in question and query.
"""

from typing import NamedTuple

_TABLES = """
    apples bags bakeries balls banks baskets beds bells belts benches bicycles birds blankets boats books boots bottles
    bowls boxes bridges brooms brushes buckets buildings buses buttons cabins cafes cakes cameras candles caps cards
    carpets carrots cars castles cats chairs cheeses churches cinemas clocks clothes clubs coats coins concerts cottages
    courses cows cups curtains desks dishes dogs dolls doors dresses drums ducks eggs engines envelopes farms fences
    ferries festivals films flags flats flowers flutes forests forks fridges games gardens gates gloves goats guitars
    hammers hats horses hospitals hotels houses islands jackets jars kettles keys kitchens kites knives ladders lakes
    lamps lemons letters libraries magazines maps markets meals medals melons mirrors motors mountains museums needles
    newspapers novels onions orchards ovens paintings parcels parks pencils pens phones photos pianos pictures pigs
    pillows pipes plants plates poems pools posters pots potatoes presents prizes puppets purses puzzles radios rings
    rivers roads rooms ropes sandals saws scarves schools scissors shelves ships shirts shoes shops shovels skirts socks
    sofas songs soups spoons stables stamps stations stoves studios suitcases tents theatres tickets tools towels towers
    toys tractors trains trays trees trucks trumpets tunnels umbrellas vans vases villas violins wagons walls watches
    wheels windows workshops zoos
"""

TABLES = tuple(_TABLES.split())

_NUMBERS = """
    age amount area capacity cost damage debt demand depth diameter discount distance duration energy fare fee fine
    floor frequency gain grade growth height humidity income latitude length level load loss mileage noise output
    pages penalty points popularity power pressure price profit radius rainfall rate rating rent revenue salary
    score seats share size speed stock strength tax temperature thickness tip toll turnover usage value visits voltage
    volume wage weight width yield
"""

NUMBERS = tuple(_NUMBERS.split())

# Columns of words, each group with the words that its columns hold.
_GROUPS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("owner", "author", "painter", "teacher", "driver", "keeper", "maker", "seller", "buyer", "doctor", "manager"): (
        *("anna", "ben", "clara", "david", "emma", "frank", "grace", "henry", "ida", "jack", "kate", "leo", "mary"),
        *("nora", "oscar", "paul", "rosa", "sam", "tom", "vera"),
    ),
    ("city", "town", "harbour", "origin", "address", "birthplace", "destination"): (
        *("athens", "berlin", "cairo", "dublin", "florence", "geneva", "hamburg", "lisbon", "madrid", "naples", "oslo"),
        *("paris", "quito", "rome", "seoul", "tokyo", "vienna", "warsaw"),
    ),
    ("colour", "shade", "paint", "background", "lining"): (
        *("black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow"),
    ),
    ("material", "surface", "handle", "frame", "coating"): (
        *("brass", "clay", "cotton", "glass", "iron", "leather", "paper", "plastic", "silk", "steel", "stone", "wood"),
    ),
    ("condition", "quality", "status", "state"): (
        *("broken", "cheap", "clean", "dirty", "empty", "fresh", "new", "old", "ready", "rotten", "used", "worn"),
    ),
    ("month", "birthday", "opening", "delivery"): (
        *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october"),
        *("november", "december"),
    ),
    ("taste", "smell", "filling", "sauce"): (
        *("bitter", "honey", "lime", "mint", "nutty", "pepper", "salty", "smoky", "sour", "sweet", "vanilla"),
    ),
}

VALUES = {column: values for columns, values in _GROUPS.items() for column in columns}

# The clauses that can be said in several ways: their meanings, and the plain words for each.
CLAUSES: dict[str, dict[str, tuple[str, ...]]] = {
    "aggregate": {
        "MAX": ("highest", "largest", "maximum"),
        "MIN": ("lowest", "smallest", "minimum"),
        "AVG": ("average", "mean", "typical"),
        "SUM": ("total", "overall", "combined"),
    },
    "compare": {
        ">": ("over", "above", "more than"),
        "<": ("under", "below", "less than"),
        "=": ("exactly", "equal to", "of just"),
        "<>": ("other than", "different from", "not"),
    },
    "direction": {"DESC": ("most", "greatest", "biggest"), "ASC": ("least", "slightest", "tiniest")},
}

DIALECTS = ("aggregate", "compare")  # where a document has a word of its own: four meanings each

OWN_WORDS = (
    *("zom", "bax", "dree", "fip", "gluv", "hask", "jorn", "kelp", "lum", "mosk", "narg", "oof", "plin", "quob"),
    *("rusk", "snee", "trab", "ulm", "vosh", "wexel", "yarp", "zint", "brol", "clud", "drong", "flim", "grob", "skiv"),
    *("thrum", "vank"),
)


class Kind(NamedTuple):
    """A question as it may be phrased, and its query."""

    query: str
    phrases: tuple[str, ...]


KINDS: dict[str, Kind] = {
    "count": Kind(
        "SELECT COUNT ( * ) FROM {table} ;",
        ("how many {table}", "count the {table}", "number of all {table}"),
    ),
    "count equal": Kind(
        "SELECT COUNT ( * ) FROM {table} WHERE {word} = ' {text} ' ;",
        (
            "how many {table} have {word} {text}",
            "count the {table} whose {word} is {text}",
            "number of {table} with {word} {text}",
        ),
    ),
    "count compare": Kind(
        "SELECT COUNT ( * ) FROM {table} WHERE {number} {COMPARE} {value} ;",
        (
            "how many {table} have {number} {compare} {value}",
            "count the {table} whose {number} is {compare} {value}",
            "number of {table} with {number} {compare} {value}",
        ),
    ),
    "aggregate": Kind(
        "SELECT {AGGREGATE} ( {number} ) FROM {table} ;",
        (
            "{aggregate} {number} of {table}",
            "what is the {aggregate} {number}",
            "find the {aggregate} {number} of all {table}",
        ),
    ),
    "aggregate equal": Kind(
        "SELECT {AGGREGATE} ( {number} ) FROM {table} WHERE {word} = ' {text} ' ;",
        (
            "{aggregate} {number} of {table} with {word} {text}",
            "what is the {aggregate} {number} where {word} is {text}",
            "find the {aggregate} {number} of {table} whose {word} is {text}",
        ),
    ),
    "aggregate by group": Kind(
        "SELECT {word} , {AGGREGATE} ( {number} ) FROM {table} GROUP BY {word} ;",
        (
            "{aggregate} {number} of {table} by {word}",
            "what is the {aggregate} {number} for each {word}",
            "find the {aggregate} {number} of {table} per {word}",
        ),
    ),
    "equal": Kind(
        "SELECT {shown} FROM {table} WHERE {word} = ' {text} ' ;",
        (
            "{shown} of {table} with {word} {text}",
            "show the {shown} where {word} is {text}",
            "list {shown} if {word} is {text}",
        ),
    ),
    "compare": Kind(
        "SELECT {shown} FROM {table} WHERE {number} {COMPARE} {value} ;",
        (
            "{shown} of {table} with {number} {compare} {value}",
            "show the {shown} where {number} is {compare} {value}",
            "list {shown} if {number} is {compare} {value}",
        ),
    ),
    "two filters": Kind(
        "SELECT {shown} FROM {table} WHERE {word} = ' {text} ' AND {number} {COMPARE} {value} ;",
        (
            "{shown} of {table} with {word} {text} and {number} {compare} {value}",
            "show the {shown} where {word} is {text} and {number} is {compare} {value}",
            "list {shown} if {word} is {text} and {number} is {compare} {value}",
        ),
    ),
    "between": Kind(
        "SELECT {shown} FROM {table} WHERE {number} BETWEEN {value} AND {high} ;",
        (
            "{shown} of {table} with {number} from {value} to {high}",
            "show the {shown} where {number} is between {value} and {high}",
            "list {shown} if {number} is in {value} to {high}",
        ),
    ),
    "prefix": Kind(
        "SELECT {shown} FROM {table} WHERE {word} LIKE ' {letter} % ' ;",
        (
            "{shown} of {table} whose {word} begins with {letter}",
            "show the {shown} where {word} starts with {letter}",
            "list {shown} if {word} has first letter {letter}",
        ),
    ),
    "order": Kind(
        "SELECT {shown} FROM {table} ORDER BY {number} {DIRECTION} ;",
        (
            "{shown} of {table} from the {direction} {number} on",
            "show the {shown} sorted with {direction} {number} first",
            "list {shown} starting from {direction} {number}",
        ),
    ),
    "first": Kind(
        "SELECT {shown} FROM {table} ORDER BY {number} {DIRECTION} LIMIT {limit} ;",
        (
            "{shown} of the {limit} {table} with the {direction} {number}",
            "show the {shown} of the {limit} with {direction} {number}",
            "list {limit} {shown} starting from {direction} {number}",
        ),
    ),
    "group": Kind(
        "SELECT {word} , COUNT ( * ) FROM {table} GROUP BY {word} ;",
        ("how many {table} for each {word}", "count the {table} by {word}", "number of {table} per {word}"),
    ),
    "distinct": Kind(
        "SELECT DISTINCT {word} FROM {table} ;",
        ("which {word} do {table} have", "all different {word} of {table}", "list each {word} once"),
    ),
}

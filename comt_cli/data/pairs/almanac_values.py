"""The values in the almanac's sentences: drawn once for all languages, formatted from CLDR by Babel for each.

Babel 2.18 with CLDR 47 has pitfalls. For units without a long form in a language (Vietnamese hours, miles) it prints
the id, "3 duration-hour" (python-babel/babel issue 1217); the short form is used instead. No-break and thin spaces
(French numbers, German per cent, English times) become plain ones. Counts are 2 or more, so that nouns of the carriers
are plurals. No date is the first of a month, which should be "le 1er" in French but is "1" in CLDR.
"""

from __future__ import annotations

import datetime
import importlib
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any, Literal, NamedTuple

from comt_cli.data.draws import Draws
from comt_cli.errors import UserError
from comt_cli.installing import install_package

LANGUAGES = ("en", "de", "fr", "vi")

UNITS: dict[str, tuple[str, ...]] = {
    "minutes": ("duration-minute",),
    "hours": ("duration-hour",),
    "days": ("duration-day", "duration-week", "duration-month", "duration-year"),
    "distance": ("length-meter", "length-kilometer"),
    "height": ("length-meter", "length-centimeter"),
    "depth": ("length-meter", "length-centimeter"),
    "size": ("length-meter", "length-centimeter", "length-millimeter"),
    "rain": ("length-millimeter", "length-centimeter"),
    "load": ("mass-kilogram", "mass-gram"),
    "weight": ("mass-gram", "mass-kilogram", "mass-milligram"),
    "liquid": ("volume-liter", "volume-milliliter"),
    "area": ("area-square-meter", "area-hectare", "area-square-kilometer"),
    "speed": ("speed-kilometer-per-hour", "speed-meter-per-second"),
    "power": ("power-watt", "power-kilowatt"),
    "energy": ("energy-kilowatt-hour", "energy-kilocalorie"),
    "data": ("digital-megabyte", "digital-gigabyte"),
    "pressure": ("pressure-hectopascal",),
    "temperature": ("temperature-celsius",),
    "heat": ("temperature-celsius",),
}
"""The units of each type of measure."""


class Limits(NamedTuple):
    """Limits of values: `easy` for numbers below 100 without decimals; `years`, the first and the last."""

    easy: bool
    years: tuple[int, int]


_WHOLE = {"minutes": (2, 99), "hours": (2, 23), "days": (2, 60)}  # bounds of durations for any difficulty
_PER_TIME = {"minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_592_000, "year": 31_536_000}
_CURRENCIES = (
    *("EUR", "USD", "GBP", "CHF", "JPY", "CNY", "VND", "INR", "KRW", "THB", "IDR", "MYR", "PHP", "SGD", "AUD"),
    *("NZD", "CAD", "MXN", "BRL", "ARS", "CLP", "COP", "PEN", "ZAR", "EGP", "MAD", "TND", "KES", "NGN", "TRY"),
    *("ILS", "SAR", "HUF", "PLN", "CZK", "SEK", "NOK", "DKK", "RON", "UAH"),
)
_NO_COUNTRIES = {"EU", "EZ", "QO", "UN", "XA", "XB", "ZZ"}
_NO_LANGUAGES = {"mis", "mul", "und", "zxx"}
_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u2009\u202f", " "))


def draw(kind: str, draws: Draws, limits: Limits) -> Any:
    """A value of the type `kind`, the same for all languages; uses at most five draws."""
    if kind in UNITS:
        return draws.one_of(UNITS[kind]), _measure(kind, draws, limits)
    return _TYPES[kind][0](draws, limits)


def show(kind: str, value: Any, language: str) -> str:
    """The value formatted with CLDR, with plain spaces."""
    text = format_unit(value[0], value[1], language) if kind in UNITS else _TYPES[kind][1](value, language)
    return text.translate(_SPACES)


def format_unit(unit: str, number: Decimal | int, language: str) -> str:
    """A measure in the long form, or in the short one if the language has no long one; never with the unit's id."""
    units = babel("units")
    for length in ("long", "short"):
        text: str = units.format_unit(number, unit, length, locale=language)
        if unit not in text:
            return text
    raise ValueError(f"CLDR has no words for {unit} in {language}")


_Type = tuple[Callable[[Draws, Limits], Any], Callable[[Any, str], str]]  # (draws a value, formats it)


@cache
def babel(module: str) -> Any:
    """A module of Babel, imported at its first use. Raises `UserError` if it is missing."""
    try:
        return importlib.import_module(f"babel.{module}")
    except ImportError as error:
        said = f"corpus: Babel, which formats values and reads catalogues, cannot be imported: {error}"
        raise UserError(said, install_package("babel>=2.18")) from error


@cache
def _locale(language: str) -> Any:
    return babel("core").Locale(language)


def _number(draws: Draws, limits: Limits, whole: bool = True) -> Decimal | int:
    """2 to 99; if not easy, half of the numbers are larger, or have a decimal unless `whole`."""
    part = 0 if limits.easy else draws.below(4)
    if part < 2:
        return draws.between(2, 99)
    if part == 3 and not whole:
        return Decimal(draws.between(20, 999)) / 10
    return draws.between(100, 99_999 if whole and part == 3 else 9_999 if draws.below(2) else 999)


def _measure(kind: str, draws: Draws, limits: Limits) -> Decimal | int:
    if kind in _WHOLE:
        return draws.between(*_WHOLE[kind])
    if kind == "temperature":
        degrees = draws.between(-200, 400)
        return degrees // 10 if limits.easy else Decimal(degrees) / 10
    if kind == "heat":
        return draws.between(60, 99) if limits.easy else draws.between(100, 260)
    if kind == "pressure" and not limits.easy:
        return draws.between(940, 1060)
    return _number(draws, limits, whole=False)


def _date(draws: Draws, limits: Limits) -> datetime.date:
    return datetime.date(draws.between(*limits.years), draws.between(1, 12), draws.between(2, 28))


def _period(draws: Draws, limits: Limits) -> tuple[datetime.date, datetime.date]:
    begin = _date(draws, limits)
    end = begin + datetime.timedelta(days=draws.between(2, 200))
    return begin, min(end, datetime.date(limits.years[1], 12, 31))  # not in the years of the unseen test set


def _time(first_hour: int, last_hour: int) -> Callable[[Draws, Limits], datetime.time]:
    return lambda draws, _: datetime.time(draws.between(first_hour, last_hour), draws.below(60))


def _relative(units: tuple[str, ...], sign: int) -> _Type:
    def chosen(draws: Draws, _: Limits) -> tuple[str, int]:
        return draws.one_of(units), draws.between(2, 60)

    def shown(value: tuple[str, int], language: str) -> str:
        unit, count = value
        delta = datetime.timedelta(seconds=sign * count * _PER_TIME[unit])
        # The threshold keeps 14 days from becoming 2 weeks.
        how = {"granularity": unit, "threshold": 10_000, "add_direction": True}
        return str(babel("dates").format_timedelta(delta, locale=language, **how))

    return chosen, shown


def _formatted(module: str, function: str, **arguments: Any) -> Callable[[Any, str], str]:
    """A Babel formatter, called with the value, or with the parts of a tuple."""

    def shown(value: Any, language: str) -> str:
        values = value if isinstance(value, tuple) else (value,)
        return str(getattr(babel(module), function)(*values, locale=language, **arguments))

    return shown


def _skeleton(name: str) -> Callable[[Any, str], str]:
    """Formats the parts of a date that `name` selects, in the language's order."""
    return lambda value, language: str(babel("dates").format_skeleton(name, value, locale=language))


def _span(value: Any, language: str) -> str:
    skeleton = "hm" if language == "en" else "Hm"
    return _formatted("dates", "format_interval", skeleton=skeleton)(value, language)


def _money(draws: Draws, limits: Limits) -> tuple[Decimal | int, str]:
    return _number(draws, limits), draws.one_of(_CURRENCIES)


def _share(draws: Draws, limits: Limits) -> Decimal:
    tenths = draws.between(2, 99) * 10 if limits.easy else draws.between(11, 999)
    return Decimal(tenths) / 1000


def _large(draws: Draws, limits: Limits) -> int:
    scale = 10**6 if draws.below(2) else 10**9
    return scale * draws.between(2, 99 if limits.easy else 999)


@cache
def _codes(what: Literal["territories", "languages", "currencies"], easy: bool) -> tuple[str, ...]:
    """The codes that all four languages name without brackets; if easy, only codes of two letters."""
    if what == "currencies":
        return _CURRENCIES
    names = [getattr(_locale(language), what) for language in LANGUAGES]
    left_out = _NO_COUNTRIES if what == "territories" else _NO_LANGUAGES
    sizes = (2,) if easy or what == "territories" else (2, 3)
    shared = set.intersection(*(set(each) for each in names)) - left_out
    plain = (code for code in sorted(shared) if len(code) in sizes and code.isalpha())
    return tuple(code for code in plain if not any("(" in each[code] for each in names))


def _named(what: Literal["territories", "languages", "currencies"], most: int) -> _Type:
    def chosen(draws: Draws, limits: Limits) -> tuple[str, ...]:
        codes = _codes(what, limits.easy)
        return tuple(codes[place] for place in draws.some(draws.between(min(2, most), most), len(codes)))

    def shown(value: tuple[str, ...], language: str) -> str:
        names = getattr(_locale(language), what)
        return str(babel("lists").format_list([names[code] for code in value], locale=language))

    return chosen, shown


_CLOCK = _formatted("dates", "format_time", format="short")

_TYPES: dict[str, _Type] = {
    "day": (_date, _formatted("dates", "format_date", format="full")),
    "date": (_date, _formatted("dates", "format_date", format="long")),
    "month": (_date, _skeleton("yMMMM")),
    "monthday": (_date, _skeleton("MMMMd")),
    "quarter": (_date, _skeleton("yQQQQ")),
    "year": (lambda draws, limits: draws.between(*limits.years), lambda value, _: str(value)),
    "period": (_period, _formatted("dates", "format_interval", skeleton="yMMMd")),
    "weekday": (lambda draws, _: draws.below(7), lambda value, lang: str(_locale(lang).days["format"]["wide"][value])),
    "time": (_time(0, 23), _CLOCK),
    "morning": (_time(5, 11), _CLOCK),
    "evening": (_time(13, 23), _CLOCK),
    "span": (lambda draws, limits: (_time(5, 11)(draws, limits), _time(13, 23)(draws, limits)), _span),
    "soon": _relative(("minute", "hour"), 1),
    "ahead": _relative(("day", "week", "month", "year"), 1),
    "ago": _relative(("day", "week", "month", "year"), -1),
    "count": (_number, _formatted("numbers", "format_decimal")),
    "percent": (_share, _formatted("numbers", "format_percent", decimal_quantization=False)),
    "big": (_large, _formatted("numbers", "format_compact_decimal", format_type="long")),
    "amount": (_money, _formatted("numbers", "format_currency", format_type="name", currency_digits=False)),
    "price": (_money, _formatted("numbers", "format_currency")),
    "currency": _named("currencies", 1),
    "currencies": _named("currencies", 4),
    "country": _named("territories", 1),
    "countries": _named("territories", 4),
    "languages": _named("languages", 4),
}
"""All types of values that are not measures."""

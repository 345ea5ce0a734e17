"""What policies and outcomes are called in tables, figures and sentences: decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from shadowprice.lab.compare import Row

NAMES = {  # in the order in which policies are listed
    "uniform": "uniform",
    "proportional": "proportional",
    "tale": "TALE-EP",
    "heuristic": "CLEAR (heuristic)",
    "auction": "CLEAR (auction)",
    "clear": "CLEAR",
    "triangular": "CLEAR (triangular)",
    "quadratic": "CLEAR (quadratic)",
    "expected": "expected",
    "index": "index",
    "oracle": "oracle",
    "clairvoyant": "clairvoyant",
}
_HINDSIGHT = ("oracle", "clairvoyant")
_EARLIER_NAMES = {"metered": "index"}  # in results of earlier versions
_OUTCOMES = {"solved": "correct", "cut": "truncated", "abandoned": "declined"}  # columns of results.json


class Variant(NamedTuple):
    """What is compared: a policy, in reserved accounting with or without reclaiming unused tokens, and with or
    without landings."""

    policy: str
    reclaim: bool = False
    landing: bool = False

    @classmethod
    def of(cls, row: Row) -> Variant:
        policy, accounting = str(row.get("policy") or ""), row.get("accounting")
        reclaim = accounting == "reclaimed" or (bool(row.get("reclaim")) and accounting != "metered")
        return cls(_EARLIER_NAMES.get(policy, policy), reclaim, bool(row.get("landing")))

    @property
    def hindsight(self) -> bool:
        """Whether it cannot be run, because it needs to know lengths or answers in advance."""
        return self.policy in _HINDSIGHT

    @property
    def order(self) -> tuple[int, Variant]:
        known = list(NAMES)
        return (known.index(self.policy) if self.policy in known else len(known)), self

    def label(self, accounting: str | None = None) -> str:
        """`CLEAR, reclaim` or `uniform, metered`; without `accounting` where the context already names it."""
        parts = [NAMES.get(self.policy, self.policy)]
        if self.reclaim:
            parts.append("reclaim")
        if self.landing:
            parts.append("landing")
        if accounting == "metered":
            parts.append(accounting)
        return ", ".join(parts)


def row_label(row: Row) -> str:
    """The full label of a row."""
    return Variant.of(row).label(row.get("accounting"))


def accounting_of(row: Row) -> str | None:
    """Reserved or metered; with reclaim, accounting is reserved."""
    accounting: str | None = row.get("accounting")
    return "reserved" if accounting == "reclaimed" else accounting


def by_accounting(rows: Iterable[Row]) -> dict[str | None, list[Row]]:
    """Rows by `accounting_of`, in the order they come."""
    groups: dict[str | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(accounting_of(row), []).append(row)
    return groups


def by_variant(rows: Iterable[Row]) -> dict[Variant, list[Row]]:
    """Rows by what they compare, in the order of `NAMES`."""
    groups: dict[Variant, list[Row]] = {}
    for row in rows:
        groups.setdefault(Variant.of(row), []).append(row)
    return dict(sorted(groups.items(), key=lambda item: item[0].order))


def outcome_label(name: Any) -> Any:
    """The word for an outcome of a request, from the name that results.json has for it."""
    return _OUTCOMES.get(name, name)

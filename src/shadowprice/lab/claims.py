"""What held and what did not: the claims of the paper, and ours, checked on the rows of the other tables.

`held` is yes or no; it is "not tested" if these traces or options do not allow the check. The text of a claim says when
it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shadowprice.lab import checks
from shadowprice.lab.compare import Row
from shadowprice.lab.config import Lab, NotPossible


class Claim(NamedTuple):
    """A claim, where it is made, how it is checked, and the usual reason if it does not hold."""

    text: str
    where: str
    check: Callable[[Lab], tuple[str, bool]]
    why: str = ""


def claims(lab: Lab) -> list[Row]:
    return [_finding(lab, claim) for claim in CLAIMS]


def _finding(lab: Lab, claim: Claim) -> Row:
    try:
        measured, held = claim.check(lab)
        verdict = "yes" if held else "no"
    except NotPossible as error:
        measured, verdict = str(error), "not tested"
    return {
        "table": "findings",
        "claim": claim.text,
        "where": claim.where,
        "measured": measured,
        "held": verdict,
        "why": claim.why if verdict == "no" else "",
        "claimed_by": "ours" if claim.where == "ours" else "paper",
    }


# Reasons that several of the claims have in common, or that take more than a few words.
_CUT = "grants end at the forecast median, so about half of the admitted answers are cut; equal shares can cut fewer"
_SURPLUS = (
    "the heuristic divides the budget among the shorter half, so that its grants are larger and fewer answers are cut"
)
_NOTHING = "where no answer is shorter than an equal share of the budget, nobody is answered without declining others"
_STEP = (
    "below the mean length per query eq. 16 gives a million, so that grants end at the forecast median; smaller values "
    "leave room for answers that are longer than forecast"
)
_FLAT = "neighbouring values differ by less than their intervals, so that a few answers decide which is best"
_WRONG = "it knows lengths, not which answers are correct, and pays for wrong ones too"
_WORDS = "the words of a question say little about how long this model reasons"

CLAIMS = [
    Claim(
        "When tokens are scarce CLEAR has at least 3 times as many correct answers as uniform",
        "abstract, table 1",
        checks.scarce_gain,
    ),
    Claim("CLEAR is not below uniform in any tested condition", "table 1, appendix B", checks.never_below, _CUT),
    Claim("CLEAR is not below uniform around the median length", "figure 5", checks.around_the_median, _CUT),
    Claim("When tokens are ample CLEAR and uniform converge, to within 1 point", "section 7.2, figure 5", checks.ample),
    Claim("Many requests are declined when tokens are scarce, none when they are ample", "figure 5", checks.declined),
    Claim(
        "CLEAR is the best of the paper's practical methods, to within 1 point",
        "table 1",
        checks.best_of_the_papers,
        _SURPLUS,
    ),
    Claim(
        "When tokens are scarce, forecasts without declining lose to CLEAR and to uniform",
        "table 1",
        checks.never_declining,
        _NOTHING,
    ),
    Claim("Alpha changes no result, and the price is proportional to it", "figure 8", checks.alpha),
    Claim(
        "A high beta is best for a scarce budget, a lower one for larger budgets", "figure 7", checks.beta_shift, _FLAT
    ),
    Claim(
        "The adaptive beta is as good as the best fixed one, to within 1 point", "figure 7", checks.beta_adaptive, _STEP
    ),
    Claim("CLEAR stays above uniform when noise is added to the forecasts", "figure 11", checks.noise),
    Claim("Triangular and quadratic utilities are within 2.2 points of CLEAR", "table 3", checks.variants),
    Claim("Correct answers against one limit for all are S-shaped: strict, surge, ample", "figure 1", checks.s_shape),
    Claim("The predictor ranks lengths well: Spearman of at least 0.5", "figure 4", checks.ranks, _WORDS),
    Claim("Best of K for code: CLEAR is above uniform when tokens are scarce", "table 2", checks.code),
    Claim("On a second model CLEAR is not below uniform", "table 4", checks.second, _CUT),
    Claim(
        "The oracle is an upper bound on the correct answers of any policy",
        "section 6, appendix A",
        checks.oracle,
        _WRONG,
    ),
    Claim("Policy expected is above CLEAR on average, and nowhere more than 1 point below", "ours", checks.expected),
    Claim("In metered accounting CLEAR is not below uniform", "ours", checks.metering, _CUT),
    Claim(
        "In metered accounting the index is nowhere more than half a point below uniform or CLEAR", "ours", checks.index
    ),
    Claim(
        "Landings never lower the result of the index, and add 3 points where tokens are scarce", "ours", checks.landing
    ),
]

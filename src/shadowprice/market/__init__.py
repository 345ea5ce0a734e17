"""The market: pure NumPy and SciPy, no files, no clock, no hidden randomness."""

from shadowprice.market.anytime import Anytime
from shadowprice.market.clearing import Clearing, clear
from shadowprice.market.curve import Curve, ThresholdCurve
from shadowprice.market.curves import Expected, Quadratic, Surge, Triangular, fit_surge
from shadowprice.market.paper import algorithm1
from shadowprice.market.policies import POLICIES, allocate, check_policy

__all__ = [
    "POLICIES",
    "Anytime",
    "Clearing",
    "Curve",
    "Expected",
    "Quadratic",
    "Surge",
    "ThresholdCurve",
    "Triangular",
    "algorithm1",
    "allocate",
    "check_policy",
    "clear",
    "fit_surge",
]

"""What can go wrong, as one tree.

    ShadowpriceError
    ├── InputError        a file, a line or an argument is not what it must be; says where and how to mend it
    ├── MarketError       a curve, forecast or budget that no market can be made of (NaN, negative, wrong length)
    └── PolicyError       an unknown policy or option; lists the known ones

Every message is one line, so that the command can print it as it is.
"""

from __future__ import annotations

from os import PathLike


class ShadowpriceError(Exception):
    """The root: catch this to catch everything the package raises on purpose."""


class InputError(ShadowpriceError, ValueError):
    """Bad input, with the place it was found and the way out.

    Printed as ``requests.jsonl:17: no custom_id (give every request its own)``.
    """

    def __init__(
        self,
        problem: str,
        *,
        fix: str = "",
        path: str | PathLike[str] | None = None,
        line: int | None = None,
    ) -> None:
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(f"{place}{problem}" + (f" ({fix})" if fix else ""))
        self.problem, self.fix, self.path, self.line = problem, fix, path, line


class MarketError(ShadowpriceError, ValueError):
    """Numbers no market can be made of; the message names the parameter."""


class PolicyError(ShadowpriceError, ValueError):
    """An unknown policy, or an option the policy does not take."""

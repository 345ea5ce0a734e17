"""What can go wrong, as one tree.

    ShadowpriceError
    ├── InputError        a file, a line or an argument is not what it must be; says where and how to fix it
    ├── MarketError       a curve, forecast or budget that no market can be made of (NaN, negative, wrong length)
    ├── PolicyError       an unknown policy or option; lists the known ones
    ├── MissingExtra      an optional package is not installed; names the pip line
    ├── LedgerError       the account was asked for what it cannot do
    │   └── Overdrawn     a reservation above what is available
    └── BackendError         a model did not answer
        ├── Unavailable      another try may help: connection, timeout, 5xx, rate limit
        ├── Refused          another try will not help: the request itself is at fault
        └── LimitViolated    its server was seen to ignore a limit, and is asked nothing more

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


class MissingExtra(ShadowpriceError, ImportError):
    """An optional package is not installed."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs an extra (pip install 'shadowprice[{extra}]')")
        self.extra = extra


class LedgerError(ShadowpriceError):
    """The account was asked for what it cannot do; it is unchanged."""


class Overdrawn(LedgerError):
    """A reservation above what is available."""


class BackendError(ShadowpriceError):
    """A model did not answer.

    `tokens` is what the failed attempt is known to have generated; None: nobody knows, so that it
    must be charged as if it had used its whole limit.
    """

    def __init__(self, message: str, *, tokens: int | None) -> None:
        super().__init__(message)
        self.tokens = tokens


class Unavailable(BackendError):
    """Another try may help, after `delay` seconds if the server named a delay."""

    def __init__(self, message: str, *, tokens: int | None, delay: float | None = None) -> None:
        super().__init__(message, tokens=tokens)
        self.delay = delay


class Refused(BackendError):
    """Another try will not help; `code` is what the error file says."""

    def __init__(self, message: str, *, tokens: int | None = 0, code: str = "request_refused") -> None:
        super().__init__(message, tokens=tokens)
        self.code = code


class LimitViolated(BackendError):
    """The server ignored the limit of an earlier request: what it would generate cannot be bounded."""

    def __init__(self, message: str) -> None:
        super().__init__(message, tokens=0)

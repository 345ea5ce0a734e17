"""All errors that the package raises, as one tree.

    ShadowpriceError
    ├── InputError        a file, a line or an argument is invalid; says where and how to fix it
    ├── MarketError       an invalid curve, forecast or budget (NaN, negative, wrong length)
    ├── PolicyError       an unknown policy or option; lists the known ones
    ├── MissingExtra      an optional package is not installed; names the pip line
    ├── LedgerError       an operation that the ledger does not allow
    │   └── Overdrawn     a reservation above what is available
    └── BackendError         a model did not answer
        ├── Unavailable      a retry may help: connection, timeout, 5xx, rate limit
        ├── Refused          a retry will not help: the request itself is at fault
        │   └── Denied       other requests would be refused as well: the key, the account, the model, the address
        └── LimitViolated    the server ignored a limit, and nothing more is sent to it

Every message is one line, so that the command can print it unchanged.
"""

from __future__ import annotations

from os import PathLike

from shadowprice.redact import redact


class ShadowpriceError(Exception):
    """The base class: catch it to catch everything that the package raises on purpose."""


class InputError(ShadowpriceError, ValueError):
    """Bad input, with the place where it was found and how to fix it.

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
    """Invalid numbers for a market; the message names the parameter."""


class PolicyError(ShadowpriceError, ValueError):
    """An unknown policy, or an option the policy does not take."""


class MissingExtra(ShadowpriceError, ImportError):
    """An optional package is not installed."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs an extra (pip install 'shadowprice[{extra}]')")
        self.extra = extra


class LedgerError(ShadowpriceError):
    """An operation that the ledger does not allow; the ledger is unchanged."""


class Overdrawn(LedgerError):
    """A reservation above what is available."""


class BackendError(ShadowpriceError):
    """A model did not answer.

    tokens  how many the failed attempt generated; None if unknown: then the whole limit is charged
    cause   a few words that failures of the same kind share: "503", "connection refused (127.0.0.1:8000)"
    sent    whether a server received the request; if so, only the server can know that it generated nothing
    """

    def __init__(self, message: str, *, tokens: int | None, cause: str = "", sent: bool = True) -> None:
        # A message from a server may contain the key, or half a character, which cannot be written to a file.
        super().__init__(redact(message.encode(errors="replace").decode()))
        self.tokens, self.sent = tokens, sent
        self.cause = redact(cause.encode(errors="replace").decode()) or str(self)


class Unavailable(BackendError):
    """A retry may help, after `delay` seconds if the server named a delay."""

    def __init__(
        self, message: str, *, tokens: int | None, cause: str = "", sent: bool = True, delay: float | None = None
    ) -> None:
        super().__init__(message, tokens=tokens, cause=cause, sent=sent)
        self.delay = delay


class Refused(BackendError):
    """A retry will not help; `code` is the code in the error file."""

    def __init__(
        self,
        message: str,
        *,
        tokens: int | None = 0,
        cause: str = "",
        sent: bool = True,
        code: str = "request_refused",
    ) -> None:
        super().__init__(message, tokens=tokens, cause=cause, sent=sent)
        self.code = code


class Denied(Refused):
    """Refused for a reason that other requests share: the key, the account, the name of the model, the address."""


class LimitViolated(BackendError):
    """The server ignored the limit of an earlier request, so what it would generate cannot be bounded."""

    def __init__(self, message: str) -> None:
        super().__init__(message, tokens=0, sent=False)

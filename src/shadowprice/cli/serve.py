"""`shadowprice serve`: an endpoint with budgets in front of OpenAI-compatible servers."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shadowprice.cli.common import DONE, INTERRUPTED
from shadowprice.cli.options import Commands, add_command, add_limit_field
from shadowprice.cli.terminal import say
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.accounts.owner import Owner
    from shadowprice.gateway.config import Config

_DESCRIPTION = """\
Serves an endpoint in front of an OpenAI-compatible server: in a client, change only the base URL. Every
request buys tokens at a posted price, or is declined with status 402, before anything is sent. The price
moves so that a window's budget lasts until the window ends. No budget is ever exceeded.
"""
_EPILOG = """\
  shadowprice serve --local --budget 20k/hour                       the embedded model
  shadowprice serve --upstream http://127.0.0.1:8000/v1 --budget 1M/day
  shadowprice serve --config gateway.toml                           several models, teams, keys, budgets in money

The key of the upstream is $OPENAI_API_KEY; without it the client's own key is passed on. $SHADOWPRICE_ADMIN_KEY
opens the dashboard (/admin) and the admin endpoints. Several gateways can share a ledger. See docs/gateway.md.
"""
_LEDGER = ".shadowprice-gateway"


def add(commands: Commands) -> None:
    command = add_command(commands, "serve", "an endpoint with a budget, for live requests", _DESCRIPTION, _EPILOG)
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument("--upstream", metavar="URL", help="the server, e.g. http://127.0.0.1:8000/v1")
    where.add_argument("--local", action="store_true", help="the embedded model, on this machine")
    where.add_argument("--config", metavar="FILE", help="routes, teams, tenants and budgets: gateway.toml")
    where.add_argument("--new-key", action="store_true", help="print a key for a tenant, and its SHA-256, and exit")
    command.add_argument(
        "--budget",
        action="append",
        help="in output tokens: 2000 in total, 1M/day (or minute, hour, month) or '1M/day rolling'; or in money: "
        "'$5/day', with --rate-in and --rate-out; can be repeated",
    )
    command.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    command.add_argument("--port", type=int, help="port to listen on; 0 picks a free one (default: 8080)")
    command.add_argument("--workers", type=int, metavar="N", help="processes that share the port (default: 1)")
    command.add_argument(
        "--max-tokens", type=int, metavar="N", help="the most tokens that an answer may get (default: 4096)"
    )
    command.add_argument(
        "--price", type=float, help="a fixed price: correct answers that a token must buy, e.g. 0.001; 0 is free"
    )
    command.add_argument("--rate-in", metavar="DOLLARS", help="dollars per million input tokens, for money")
    command.add_argument(
        "--rate-out", metavar="DOLLARS", help="dollars per million output tokens, for budgets in money"
    )
    add_limit_field(command)
    command.add_argument("--ledger", metavar="PLACE", help=f"a folder, or postgresql://... (default: {_LEDGER})")
    command.add_argument("--mode", choices=("enforce", "shadow"), help="shadow: decide and report, enforce nothing")
    command.add_argument(
        "--forecaster", metavar="DIR", help="a forecaster made by train (default: the one in the package)"
    )
    command.add_argument(
        "--require-keys", action="store_true", help="serve only tenants, which are added at /admin/tenants"
    )
    command.add_argument("--log", choices=("json",), help="write a line of JSON per request to standard error")
    command.add_argument("--otel", action="store_true", help="export metrics to OpenTelemetry, configured by $OTEL_...")
    command.add_argument("--socket", type=int, help=argparse.SUPPRESS)  # of a worker: the listening socket
    command.add_argument("--group", help=argparse.SUPPRESS)  # of a worker: names its gateway
    command.set_defaults(command=serve)


def serve(options: argparse.Namespace) -> int:
    if options.new_key:
        from shadowprice.gateway.tenants import digest, new_key

        key = new_key()
        print(f"key         {key}\nkey_sha256  {digest(key)}")
        return DONE
    with ExitStack() as stack:
        if options.local:
            from shadowprice.backends.llamacpp import LlamaCppServer
            from shadowprice.backends.models import DEFAULT_MODEL, find_model

            options.upstream = stack.enter_context(LlamaCppServer(find_model(DEFAULT_MODEL, progress=say))).base_url
        config = _config(options)
        if options.socket is None:
            listener = stack.enter_context(_listening(config))
        else:
            listener = stack.enter_context(socket.socket(fileno=options.socket))
        if config.workers > 1 and options.socket is None:
            _check_parts(config)
            return _supervise(config, listener, options)
        owner, folder = _ledger(config.ledger)
        stack.callback(owner.close)
        if options.socket is not None:
            threading.Thread(target=_end_with_supervisor, daemon=True).start()
        ready = partial(_announce, config, listener) if options.socket is None else _nothing
        with asyncio.Runner(loop_factory=_event_loop()) as runner:
            runner.run(_run(config, owner, folder, listener, options.group or uuid.uuid4().hex, ready))
    return DONE


def _nothing() -> None:
    """For a worker: its supervisor announces the address."""


def _config(options: argparse.Namespace) -> Config:
    from shadowprice.cost import Rates
    from shadowprice.formats.routes import is_address
    from shadowprice.gateway.config import Config, read_config, secret
    from shadowprice.gateway.tenants import parse_accounts
    from shadowprice.gateway.upstreams import Route

    changes = {
        "host": options.host, "port": options.port, "workers": options.workers, "cap": options.max_tokens,
        "ledger": options.ledger, "forecaster": options.forecaster, "log": options.log,
        "otel": options.otel or None, "require_keys": options.require_keys or None,
        "shadow": None if options.mode is None else options.mode == "shadow",
    }  # fmt: skip
    if options.price is not None:
        changes |= {"policy": "fixed", "price": options.price}
    _check(options)
    given = {name: value for name, value in changes.items() if value is not None}
    if options.config:
        if options.budget or options.rate_in or options.rate_out or options.limit_field:
            raise InputError(
                "--budget, --rate-... or --limit-field with --config: they are in the file", fix="change them there"
            )
        return replace(read_config(options.config), **given)
    if not options.budget:
        raise InputError("no --budget", fix="give one, as --budget 1M/day")
    if not is_address(options.upstream):
        raise InputError("the upstream is not an address", fix="write it as http://127.0.0.1:8000/v1")
    if bool(options.rate_in) != bool(options.rate_out):
        raise InputError("one rate is missing", fix="give both --rate-in and --rate-out")
    rates = Rates.dollars(options.rate_in, options.rate_out) if options.rate_in else None
    if rates is None and any(budget.lstrip().startswith("$") for budget in options.budget):
        raise InputError("the cost of tokens is unknown", fix="give --rate-in 0.15 --rate-out 0.60, per million tokens")
    key = secret("OPENAI_API_KEY")
    route = Route("upstream", options.upstream, rates=rates, api_key=key, limit_field=options.limit_field or "")
    return Config([route], parse_accounts("all", options.budget), admin_key=secret("SHADOWPRICE_ADMIN_KEY"), **given)


def _check(options: argparse.Namespace) -> None:
    if options.max_tokens is not None and options.max_tokens < 1:
        raise InputError(f"--max-tokens {options.max_tokens}", fix="give 1 or more")
    if options.price is not None and not 0 <= options.price < 1e9:
        raise InputError(f"--price {options.price}", fix="give 0 or more")
    if options.port is not None and not 0 <= options.port < 65536:
        raise InputError(f"--port {options.port}", fix="give 0 to 65535")
    if options.workers is not None and not 1 <= options.workers <= 64:
        raise InputError(f"--workers {options.workers}", fix="give 1 to 64")


def _listening(config: Config) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=4096)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (while")[0]
        raise InputError(
            f"cannot listen on {config.host}:{config.port}: {reason}", fix="give another --host or --port"
        ) from None


def _address(listener: socket.socket) -> str:
    name, port = listener.getsockname()[:2]
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _announce(config: Config, listener: socket.socket) -> None:
    name, address = listener.getsockname()[0], _address(listener)
    behind = config.routes[0].base_url if len(config.routes) == 1 else f"{len(config.routes)} routes"
    say(f"{address}/v1 in front of {behind}")
    say(f"in a client: OPENAI_BASE_URL={address}/v1, and nothing else")
    if config.admin_key:
        say(f"dashboard: {address}/admin, with the admin key as the password")
    if not config.require_keys and not config.tenants and name not in ("127.0.0.1", "::1"):
        say("note: everyone who can reach this address can spend the budget (--require-keys)")


def _ledger(place: str) -> tuple[Owner, Path]:
    """Where the accounts are, and the folder of this machine's counters."""
    if place.startswith(("postgresql:", "postgres:")):
        from shadowprice.accounts.postgres import PostgresOwner

        return PostgresOwner(place), Path(_LEDGER, "workers")
    from shadowprice.accounts.owner import SqliteOwner

    try:
        Path(place).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"no folder for the ledger: {error.strerror}"
        raise InputError(problem, path=place, fix="give another --ledger") from None
    return SqliteOwner(Path(place, "accounts.sqlite")), Path(place, "workers")


def _event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, where it is installed: it costs less for each request. None: asyncio's own."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


async def _run(
    config: Config, owner: Owner, folder: Path, listener: socket.socket, group: str, ready: Callable[[], None]
) -> None:
    from shadowprice.accounts.tree import Tree
    from shadowprice.forecast import default, load
    from shadowprice.gateway.app import run

    forecaster = load(config.forecaster) if config.forecaster else default()
    await run(config, Tree(owner, folder), forecaster, listener, group=group, ready=ready, log=say)


# --- several processes --------------------------------------------------------------------------


def _check_parts(config: Config) -> None:
    """Finds mistakes before processes are started: those would be started again and again."""
    from shadowprice.forecast import load

    _ledger(config.ledger)[0].close()
    if config.forecaster:
        load(config.forecaster)


def _end_with_supervisor() -> None:
    """Ends this worker once its supervisor has, in whatever way, so that nobody listens on the port any more."""
    os.read(0, 1)  # the supervisor writes nothing, and holds the other end as long as it lives
    os.kill(os.getpid(), signal.SIGTERM)


def _supervise(config: Config, listener: socket.socket, options: argparse.Namespace) -> int:
    """Keeps `workers` processes on one socket and one ledger; one that dies is replaced."""
    group, stopping = uuid.uuid4().hex, False
    given = [word for word in sys.argv[1:] if word]
    if options.local:  # one model for all of them
        given = ["--upstream" if word == "--local" else word for word in given]
        given.insert(given.index("--upstream") + 1, options.upstream)
    command = [sys.executable, "-m", "shadowprice", *given, "--socket", str(listener.fileno()), "--group", group]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        for worker in workers:
            worker.send_signal(signal.SIGTERM)

    workers = [start() for _ in range(config.workers)]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    address = f"{_address(listener)}/healthz"
    announced = False
    while not stopping:
        time.sleep(0.2)
        if not announced:
            with suppress(OSError), urllib.request.urlopen(address, timeout=5):
                announced = True
                _announce(config, listener)
        for i, worker in enumerate(workers):
            if worker.poll() is not None and not stopping:
                say(f"a worker ended with {worker.returncode}: another one is started")
                time.sleep(1.0)
                workers[i] = start()
    ended = [worker.wait() for worker in workers]
    # One that had not begun to serve is interrupted by the signal, or ended by it.
    stopped = (DONE, INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)
    return next((code for code in ended if code not in stopped), DONE)

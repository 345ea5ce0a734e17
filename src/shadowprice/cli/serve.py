"""`shadowprice serve`: an endpoint with a budget in front of any OpenAI-compatible server."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from shadowprice.cli.common import DONE
from shadowprice.cli.options import Commands, add_command
from shadowprice.cli.terminal import say
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.accounts.owner import Owner
    from shadowprice.gateway.server import Settings

_DESCRIPTION = """\
An endpoint in front of an OpenAI-compatible server: change the base URL of a client, and nothing else.
Every request is granted tokens, or declined with status 402, before anything is sent; the budget is never exceeded.
"""
_EPILOG = """\
The key of the upstream is $OPENAI_API_KEY; without it the client's own is passed on. $SHADOWPRICE_ADMIN_KEY opens
GET /admin/budgets and POST /admin/drain. Several gateways may share a ledger.
"""


def add(commands: Commands) -> None:
    command = add_command(commands, "serve", "an endpoint with a budget, for live requests", _DESCRIPTION, _EPILOG)
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument("--upstream", metavar="URL", help="the server, as http://127.0.0.1:8000/v1")
    where.add_argument("--local", action="store_true", help="the embedded model, on this machine")
    command.add_argument(
        "--budget",
        required=True,
        action="append",
        help="output tokens: 2000 in all, 1M/day (or minute, hour, month), '1M/day rolling'; can be repeated",
    )
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    command.add_argument("--port", type=int, default=8080, help="port to listen on, 0: any (default: 8080)")
    command.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="of an answer (default: 4096)")
    command.add_argument(
        "--price", type=float, default=0.0, help="correct answers that a token must buy, as 0.001 (default: 0)"
    )
    command.add_argument(
        "--ledger",
        default=".shadowprice-gateway",
        metavar="PLACE",
        help="a folder, or postgresql://... (default: .shadowprice-gateway)",
    )
    command.add_argument("--mode", choices=("enforce", "shadow"), default="enforce", help="shadow: only report")
    command.set_defaults(command=serve)


def serve(options: argparse.Namespace) -> int:
    from shadowprice.accounts.windows import parse_account
    from shadowprice.gateway.server import Settings

    if options.max_tokens < 1:
        raise InputError(f"--max-tokens {options.max_tokens}", fix="give 1 or more")
    if not 0 <= options.price < 1e9:
        raise InputError(f"--price {options.price}", fix="give 0 or more")
    if not 0 <= options.port < 65536:
        raise InputError(f"--port {options.port}", fix="give 0 to 65535")
    accounts = [parse_account("all", budget) for budget in options.budget]
    if len({account.name for account in accounts}) < len(accounts):
        raise InputError("two budgets have the same window", fix="give each window once")
    with ExitStack() as stack:
        upstream = options.upstream
        if options.local:
            from shadowprice.backends.llamacpp import LlamaCppServer
            from shadowprice.backends.models import DEFAULT_MODEL, find_model

            upstream = stack.enter_context(LlamaCppServer(find_model(DEFAULT_MODEL, progress=say))).base_url
        if not upstream.startswith(("http://", "https://")):
            raise InputError("the upstream is not an address", fix="write it as http://127.0.0.1:8000/v1")
        settings = Settings(
            upstream,
            accounts,
            os.environ.get("OPENAI_API_KEY", "").strip(),
            os.environ.get("SHADOWPRICE_ADMIN_KEY", "").strip(),
            options.price,
            options.max_tokens,
            options.mode == "shadow",
        )
        owner, folder = _ledger(options.ledger)
        stack.callback(owner.close)
        asyncio.run(_run(settings, owner, folder, options.host, options.port))
    return DONE


def _ledger(place: str) -> tuple[Owner, Path]:
    """Where the accounts are, and the folder of this machine's counters."""
    if place.startswith(("postgresql:", "postgres:")):
        from shadowprice.accounts.postgres import PostgresOwner

        return PostgresOwner(place), Path(".shadowprice-gateway", "workers")
    from shadowprice.accounts.owner import SqliteOwner

    Path(place).mkdir(parents=True, exist_ok=True)
    return SqliteOwner(Path(place, "accounts.sqlite")), Path(place, "workers")


async def _run(settings: Settings, owner: Owner, folder: Path, host: str, port: int) -> None:
    from aiohttp import web

    from shadowprice.accounts.tree import Tree
    from shadowprice.forecast import default
    from shadowprice.gateway.server import Gateway

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tree = Tree(owner, folder)
    gateway = Gateway(settings, tree, default())
    server = web.Server(gateway.handle, handler_cancellation=True, keepalive_timeout=30, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=30)
    try:
        await runner.setup()
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        name, used = runner.addresses[0][:2]
        say(f"http://{name}:{used}/v1 in front of {settings.upstream}")
        say(f"in a client: OPENAI_BASE_URL=http://{name}:{used}/v1, and nothing else")
        while not stop.is_set():
            tree.trim()
            try:
                await asyncio.wait_for(stop.wait(), 0.2)
            except TimeoutError:
                continue
        gateway.draining = True
        await runner.cleanup()  # requests under way end, for 30 seconds at most
    finally:
        await gateway.close()
        tree.close()

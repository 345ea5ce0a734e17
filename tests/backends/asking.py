"""Ask a server of some behaviour, and check that it is never charged too little."""

import asyncio

from shadowprice.backends import llamacpp
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.errors import BackendError

from .hostile import Server

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
TEXT = {"prompt": "hello"}
SHORT = {"timeout": 0.6, "stall_timeout": 0.3}


def ask(url, body=CHAT, limit=10, model="m", **options):
    """The completion, or the error raised instead; 5 seconds are a hang."""

    async def complete():
        backend = OpenAIBackend(url, model, **{**SHORT, **options})
        try:
            return await asyncio.wait_for(backend.complete(body, limit), 5)
        except BackendError as error:
            return error
        finally:
            await backend.close()

    return asyncio.run(complete())


def meet(behaviour, body=CHAT, limit=10, *, tokenizer=None, **options):
    """Ask a server of this behaviour; whatever it does, it must not have generated more than is charged."""
    with Server(behaviour, tokenizer=tokenizer) as server:
        outcome = ask(server.url, body, limit, **options)
    assert charged(outcome, limit) >= server.generated
    return outcome


def client_of(server, monkeypatch):
    """A backend on a llama.cpp server that several tests share: closing it does not stop the server."""
    monkeypatch.setattr(llamacpp, "LlamaCppServer", lambda path, **options: server)
    monkeypatch.setattr(server, "close", lambda: None)
    return llamacpp.LlamaCppBackend(server.path)


def charged(outcome, limit):
    """What the account is charged: an unknown cost is the whole limit."""
    return limit if outcome.tokens is None else outcome.tokens

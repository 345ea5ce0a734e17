"""Keys and passwords reach neither messages nor files nor other processes."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from shadowprice import redact as module
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.errors import Denied, InputError, LimitViolated, Unavailable
from shadowprice.redact import clean_environment, redact, redacted_value, register_login, register_secret

from .backends import hostile
from .backends.asking import ask, meet
from .backends.hostile import Server, fails

pytestmark = pytest.mark.usefixtures("no_proxy")

KEY = 'sk-test/"very+secret"=key'


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(module, "_secrets", {})


class TestASecret:
    @pytest.mark.parametrize(
        "form",
        [
            KEY,
            quote(KEY),
            quote(KEY, safe=""),
            quote(KEY, safe="").lower(),
            json.dumps(KEY)[1:-1],
            json.dumps(KEY)[1:-1].replace("/", "\\/"),
            base64.b64encode(KEY.encode()).decode(),
            KEY.encode().hex(),
            KEY.encode().hex().upper(),
        ],
    )
    def test_is_removed_in_every_form(self, form):
        register_secret(KEY)
        if form == quote(KEY, safe="").lower():
            assert KEY.lower() == KEY
        assert redact(f"got {form}, twice: {form}") == "got ***, twice: ***"

    @pytest.mark.parametrize("before", ["", "B", "Be", "Bearer ", "user:"])
    @pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
    def test_is_removed_from_longer_texts_in_base64(self, before, encode):
        register_secret(KEY)
        text = encode(f"{before}{KEY}, and more".encode()).decode()
        first, last = redact(text).split("***")
        removed = len(text) - len(first) - len(last)
        assert removed >= 8 * len(KEY) / 6 - 2  # but for its first and last bits, which are in characters with others

    def test_in_the_parameters_of_an_address_is_recognised_by_its_name(self):
        parameters = {"api-key": "abc-123-def", "api-version": "2024-10-21", "key": "short", "sig": "signed-away"}
        module.register_query(parameters.items())
        assert redact("abc-123-def 2024-10-21 short signed-away") == "*** 2024-10-21 short ***"

    def test_of_a_login_is_removed_from_its_header(self):
        register_login("user", "pass-word")
        header = base64.b64encode(b"user:pass-word").decode()
        assert redact(f"Basic {header} for user with pass-word") == "Basic *** for user with ***"

    @pytest.mark.parametrize("word", [None, "", "none", "EMPTY", "ollama", "lm-studio", "not-needed", "abc", "12345"])
    def test_is_not_an_ordinary_word(self, word):
        register_secret(word)
        assert redact("none EMPTY ollama lm-studio not-needed abc 12345") == (
            "none EMPTY ollama lm-studio not-needed abc 12345"
        )

    def test_that_contains_another_is_removed_whole(self):
        register_secret("secret-a")
        register_secret("secret-a-and-more")
        assert redact("x secret-a-and-more y") == "x *** y"

    def test_is_removed_from_values(self):
        register_secret("secret-a")
        value = {"a": ["secret-a", 1, None], "of secret-a": {"b": "fine"}}
        assert redacted_value(value) == {"a": ["***", 1, None], "of ***": {"b": "fine"}}


@pytest.mark.parametrize(
    "make",
    [
        lambda text: Unavailable(text, tokens=0, cause=text),
        lambda text: Denied(text, cause=text),
        lambda text: LimitViolated(text),
    ],
)
def test_no_error_of_a_backend_shows_one(make):
    register_secret("secret-a")
    error = make("the key secret-a is bad")
    assert (str(error), error.cause) == ("the key *** is bad",) * 2


class TestAServerThatEchoes:
    KEY = "sk-very-secret-key-0123456789"

    @pytest.mark.parametrize("status", [302, 400, 401, 429, 500])
    @pytest.mark.parametrize("encode", [str, quote, lambda key: base64.b64encode(key.encode()).decode()])
    def test_the_key_in_an_error(self, status, encode):
        behaviour = fails(status, f"bad key {encode(self.KEY)}!", location=f"http://x.invalid/?key={encode(self.KEY)}")
        outcome = meet(behaviour, api_key=self.KEY)
        for shown in (str(outcome), outcome.cause, repr(outcome)):
            assert encode(self.KEY) not in shown
            assert "0123456789" not in shown
        assert "***" in str(outcome)

    def test_the_key_at_the_end_of_a_long_reason(self):
        """It is removed before the reason is cut to its first words."""
        outcome = meet(fails(400, "x" * 290 + " " + self.KEY), api_key=self.KEY)
        assert "sk-very" not in str(outcome)

    def test_the_key_in_an_answer(self):
        async def behave(request, reply):
            await reply.head()
            key = request.headers["authorization"].removeprefix("Bearer ")
            for part in ("your key is ", key[:9], key[9:], "!"):
                await reply.piece(part)
            await reply.event(reply.chunk([{"index": 0, "delta": {"reasoning": f"hm {key}"}, "finish_reason": "stop"}]))
            await reply.event({"id": f"id-{key}", "choices": [], "usage": {"completion_tokens": 5, key: 1}})

        done = meet(behave, api_key=self.KEY)
        assert self.KEY not in json.dumps(done.body)
        assert done.text == done.body["choices"][0]["message"]["content"] == "your key is ***!"
        assert done.tokens == 5

    def test_the_password_of_its_address(self):
        async def behave(request, reply):
            header = request.headers["authorization"]
            await reply.error(401, f"{header} and {base64.b64decode(header.split()[1]).decode()}")

        with Server(behave) as server:
            outcome = ask(server.url.replace("//", "//user:p%40ss-word@"))
        assert str(outcome) == "401: Basic *** and user:***"

    def test_the_key_in_its_address(self):
        async def behave(request, reply):
            await reply.error(404, f"no {request.path}")

        with Server(behave) as server:
            outcome = ask(f"{server.url}?api-version=2024-10-21&api-key=abc-123-def")
        assert str(outcome) == "404: no /v1/chat/completions?api-version=2024-10-21&api-key=***"

    def test_the_password_of_its_address_as_it_is_written_there(self):
        with Server(fails(404, "no http://user:p%40ss-word@host/")) as server:
            outcome = ask(server.url.replace("//", "//user:p%40ss-word@"))
        assert str(outcome) == "404: no http://user:***@host/"


class TestAKey:
    def test_may_have_white_space_around_it(self, monkeypatch):
        with Server(hostile.well_behaved) as server:
            ask(server.url, api_key="  sk-key-with-space\r\n")
            monkeypatch.setenv("OPENAI_API_KEY", "sk-from-environment\n")
            ask(server.url)
        headers = [request.headers["authorization"] for request in server.requests]
        assert headers == ["Bearer sk-key-with-space", "Bearer sk-from-environment"]

    @pytest.mark.parametrize("key", ["sk-a\nX-Evil: 1", "sk-a\r\nb", "sk-\x00a", "sk-\x7fa", "sk-“quoted”", "sk-ключ"])
    def test_that_no_header_can_carry_is_an_error_before_anything_is_sent(self, key):
        with Server(hostile.well_behaved) as server:
            with pytest.raises(InputError, match="the API key contains characters") as caught:
                ask(server.url, api_key=key)
            assert server.requests == []
        assert key[:4] not in str(caught.value)

    def test_of_white_space_only_is_none(self):
        with Server(hostile.well_behaved) as server:
            ask(server.url, api_key=" \n")
        assert server.requests[0].headers["authorization"] == "Bearer none"


class TestAnAddress:
    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:x/v1", "http://user:pass-word@127.0.0.1:99999/v1", "http://h:-1/"]
    )
    def test_with_an_invalid_port(self, url):
        with pytest.raises(InputError, match="the base URL is invalid: its port is not one of 1 to 65535") as caught:
            OpenAIBackend(url, "m")
        assert "pass-word" not in str(caught.value)

    def test_may_have_white_space_around_it(self):
        with Server(hostile.well_behaved) as server:
            assert ask(f" {server.url}\n").tokens == 10


SECRETS = {
    "OPENAI_API_KEY": "x",
    "TEACHER_API_KEY": "x",
    "HF_TOKEN": "x",
    "GITHUB_TOKEN": "x",
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_PROFILE": "x",
    "DB_PASSWORD": "x",
    "MY_SECRET_THING": "x",
    "some_api_key": "x",
    "HTTPS_PROXY": "http://user:password@proxy:3128",
}


class TestTheEnvironmentOfAChild:
    def test_has_no_secrets(self):
        needed = {
            "PATH": "/bin",
            "HOME": "/home/x",
            "LANG": "C",
            "LD_LIBRARY_PATH": "/x",
            "HTTP_PROXY": "http://proxy:1",
        }
        assert clean_environment({**SECRETS, **needed}) == needed

    def test_is_that_of_this_process(self, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        assert clean_environment() == {name: os.environ[name] for name in clean_environment()}
        assert "OPENAI_API_KEY" not in clean_environment()

    def test_is_enough_for_python(self):
        code = "import sys, os; sys.exit('OPENAI_API_KEY' in os.environ)"
        environment = clean_environment({**os.environ, **SECRETS})
        assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60).returncode == 0

    def test_is_what_the_model_on_this_machine_is_started_with(self, gguf, monkeypatch):
        from shadowprice.backends.llamacpp import LlamaCppServer

        for name in ("OPENAI_API_KEY", "HF_TOKEN"):
            monkeypatch.setenv(name, "sk-secret")
        with LlamaCppServer(gguf, slots=1, context=256) as server:
            assert b"sk-secret" not in Path(f"/proc/{server.pid}/environ").read_bytes()

import pytest

from shadowprice.errors import InputError
from shadowprice.gateway.config import read_config
from shadowprice.gateway.tenants import digest

WHOLE = """
budgets = ["1M/day", "$20/month"]
max_tokens = 2048
mode = "shadow"

[[route]]
name = "small"
base_url = "http://127.0.0.1:8000/v1/"
model = "Qwen/Qwen3-8B"
rates = { input = 0.15, cached = 0.05, output = 0.60 }
context = 32768
api_key_env = "SMALL_KEY"
max_concurrency = 64
fallbacks = ["large"]

[[route]]
name = "large"
base_url = "https://example.org/v1"
model = "large-2"
rates = { input = 1, output = 4.00 }

[[team]]
name = "search"
budgets = ["100k/day rolling"]

[[tenant]]
name = "search-prod"
team = "search"
key_env = "SEARCH_KEY"
budgets = ["10k/hour"]
value = 2
models = ["small"]
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.setenv("SMALL_KEY", "upstream-secret")
    monkeypatch.setenv("SEARCH_KEY", "tenant-secret-key")
    monkeypatch.delenv("SHADOWPRICE_ADMIN_KEY", raising=False)

    def read(text):
        (tmp_path / "gateway.toml").write_text(text)
        return read_config(tmp_path / "gateway.toml")

    return read


def test_all_of_it(read):
    config = read(WHOLE)
    small, large = config.routes
    assert (small.name, small.base_url, small.model) == ("small", "http://127.0.0.1:8000/v1", "Qwen/Qwen3-8B")
    assert (small.api_key, small.context, small.max_concurrency) == ("upstream-secret", 32768, 64)
    assert (small.rates.input, small.rates.cached, small.rates.output) == (150_000_000, 50_000_000, 600_000_000)
    assert small.fallbacks == ("large",)
    assert large.rates.output == 4 * 10**9
    (tenant,) = config.tenants
    assert tenant.digests == {digest("tenant-secret-key")}
    assert [account.name for account in tenant.path] == [
        "all day", "all month dollars", "team search day rolling", "tenant search-prod hour",
    ]  # fmt: skip
    assert (config.cap, config.shadow, config.policy, tenant.value) == (2048, True, "posted", 2.0)


@pytest.mark.parametrize(
    ("there", "instead", "line", "says"),
    [
        ('mode = "shadow"', 'mode = "shadow', 4, "not valid TOML"),
        ('mode = "shadow"', 'mode = "dry"', 4, "enforce or shadow"),
        ('mode = "shadow"', "prot = 80", 4, "did you mean port"),
        ('mode = "shadow"', 'admin_key = "x"', 4, "admin_key_env"),
        ("max_tokens = 2048", "max_tokens = 0", 3, "max_tokens is 0"),
        ("max_tokens = 2048", "price = 0.1", None, ""),
        ("max_tokens = 2048", "shape = [1, inf]", 3, "shape is not a list"),
        ('"1M/day"', '"1M/week"', 2, "1M/week"),
        ('"http://127.0.0.1:8000/v1/"', '"127.0.0.1"', 8, "base_url"),
        ('"http://127.0.0.1:8000/v1/"', '"http://[::1/v1"', 8, "base_url"),
        ('"http://127.0.0.1:8000/v1/"', '"http:///v1"', 8, "base_url"),
        ('"http://127.0.0.1:8000/v1/"', '"http://127.0.0.1:8000/v1?key=1"', 8, "base_url"),
        ("rates = { input = 0.15, cached = 0.05, output = 0.60 }", "rates = { output = 1 }", 10, "rates"),
        ("rates = { input = 1, output = 4.00 }", "", None, "cost of 'large' is unknown"),
        ('api_key_env = "SMALL_KEY"', 'api_key_env = "NOT_SET"', 12, "NOT_SET is not set"),
        ('api_key_env = "SMALL_KEY"', 'api_key = "sk-1234"', 12, "environment"),
        ('fallbacks = ["large"]', 'fallbacks = ["huge"]', 14, "no route 'huge'"),
        ('fallbacks = ["large"]', 'landing = "maths"', 14, "no such landing"),
        ('fallbacks = ["large"]', "landing = 3", 14, "landing is not a text"),
        ('fallbacks = ["large"]', 'limit_field = "n"', 14, "use max_completion_tokens or max_tokens"),
        ('name = "large"', 'name = "small"', 17, "used twice"),
        ('team = "search"', 'team = "serch"', 28, "did you mean search"),
        ('key_env = "SEARCH_KEY"', "", 26, "no key"),
        ('key_env = "SEARCH_KEY"', 'key_sha256 = "abc"', 29, "SHA-256"),
        ('models = ["small"]', 'models = ["smal"]', 32, "no route 'smal'"),
        ('models = ["small"]', 'modles = ["small"]', 32, "did you mean models"),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_a_fix(read, tmp_path, there, instead, line, says):
    assert there in WHOLE
    if instead == "price = 0.1":
        assert read(WHOLE.replace(there, instead)).policy == "fixed"
        return
    with pytest.raises(InputError) as caught:
        read(WHOLE.replace(there, instead, 1))
    message = str(caught.value)
    assert "\n" not in message
    assert says in message
    place = f"{tmp_path}/gateway.toml:" + (f"{line}: " if line else "")
    assert message.startswith(place)
    assert "sk-1234" not in message


def test_files_that_are_not_there_or_empty(tmp_path, read):
    with pytest.raises(InputError, match="no such file"):
        read_config(tmp_path / "other.toml")
    with pytest.raises(InputError, match="route"):
        read("")
    with pytest.raises(InputError, match="no budgets"):
        read('[[route]]\nname = "a"\nbase_url = "http://x"\n')


def test_two_tenants_with_one_key_are_refused(read):
    again = '\n[[tenant]]\nname = "other"\nkey_env = "SEARCH_KEY"\n'
    with pytest.raises(InputError, match="same key"):
        read(WHOLE + again)

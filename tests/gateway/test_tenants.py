import pytest

from shadowprice.accounts.windows import parse_account
from shadowprice.errors import InputError
from shadowprice.gateway.tenants import ANYONE, Directory, digest, new_key, parse_accounts, parse_tenant

EVERYONE = [parse_account("all", "1M/day")]
TEAMS = {"search": [parse_account("team search", "100k/day")]}


def tenant(**fields):
    return parse_tenant({"name": "prod", "team": "search", "budgets": ["1k/hour"], **fields}, EVERYONE, TEAMS)


def test_a_request_spends_from_everyone_its_team_and_its_tenant():
    assert [account.name for account in tenant().path] == ["all day", "team search day", "tenant prod hour"]
    assert [account.name for account in tenant(team="", budgets=[]).path] == ["all day"]


def test_budgets_in_tokens_and_in_money_are_counted_apart():
    accounts = parse_accounts("all", ["1M/day", "$5/day"])
    assert [(each.name, each.limit, each.money) for each in accounts] == [
        ("all day", 10**6, False),
        ("all day dollars", 5 * 10**9, True),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "no spaces"},
        {"name": "x" * 65},
        {"name": ANYONE},
        {"team": "serch"},
        {"team": ["search"]},
        {"key_sha256": "secret"},
        {"value": -1},
        {"value": True},
        {"max_tokens": 0},
        {"models": "small"},
        {"budgets": ["1M/week"]},
        {"budgets": ["1/day", "2/day"]},
        {"budgets": {"day": 3}},
        {"budgts": []},
    ],
)
def test_an_invalid_tenant_is_one_line_with_a_fix(fields):
    with pytest.raises(InputError, match=r"^[^\n]+\([^\n]+\)$"):
        tenant(**fields)


def test_a_team_with_a_typo_is_named():
    with pytest.raises(InputError, match="did you mean search"):
        tenant(team="serch")


def test_a_key_finds_its_tenant_and_only_that():
    key, other = new_key(), new_key()
    known = Directory(EVERYONE, TEAMS, [tenant(key_sha256=digest(key))])
    assert known.find(key).name == "prod"
    assert known.find(other) is None
    assert known.find("") is None
    assert known.find(digest(key)) is None  # what is stored opens nothing


def test_without_tenants_everyone_is_the_same_one():
    known = Directory(EVERYONE)
    assert known.find("").name == known.find("any").name == ANYONE
    assert Directory(EVERYONE, require_keys=True).find("any") is None


def test_tenants_that_are_added_are_known_until_they_are_removed():
    key = new_key()
    known = Directory(EVERYONE, TEAMS, require_keys=True)
    known.replace({"new": {"name": "new", "key_sha256": digest(key), "budgets": ["5/day"]}})
    path = known.find(key).path
    known.replace({"new": {"name": "new", "key_sha256": digest(key), "budgets": ["5/day"]}})
    assert known.find(key).path is path
    known.replace({})
    assert known.find(key) is None


def test_keys_are_long_and_never_the_same():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert min(map(len, keys)) > 40


def test_a_tenant_whose_team_has_left_the_configuration_has_no_access():
    key = new_key()
    known = Directory(EVERYONE, require_keys=True)
    known.replace({"old": {"name": "old", "team": "gone", "key_sha256": digest(key)}})
    assert known.find(key) is None

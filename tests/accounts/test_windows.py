from datetime import UTC, datetime

import pytest

from shadowprice.accounts.windows import Window, parse_account
from shadowprice.errors import InputError


def at(*date: int) -> float:
    return datetime(*date, tzinfo=UTC).timestamp()


class TestACalendarWindow:
    @pytest.mark.parametrize(
        ("period", "start", "end"),
        [
            ("minute", at(2026, 2, 3, 4, 5), at(2026, 2, 3, 4, 6)),
            ("hour", at(2026, 2, 3, 4), at(2026, 2, 3, 5)),
            ("day", at(2026, 2, 3), at(2026, 2, 4)),
            ("month", at(2026, 2, 1), at(2026, 3, 1)),
        ],
    )
    def test_begins_and_ends_with_the_calendar_in_utc(self, period, start, end):
        window, now = Window(period), at(2026, 2, 3, 4, 5, 6)
        assert window.bounds(now) == (start, end)
        assert window.slot(end) == window.slot(end - 0.001) + 1 == window.slot(now) + 1

    def test_the_month_after_december_is_january(self):
        assert Window("month").bounds(at(2026, 12, 31)) == (at(2026, 12, 1), at(2027, 1, 1))


@pytest.mark.parametrize("period", ["minute", "hour", "day", "month"])
def test_a_rolling_window_counts_everything_within_its_length(period):
    window, now = Window(period, rolling=True), at(2026, 2, 3, 4, 5, 6)
    length = {"minute": 60, "hour": 3600, "day": 86400, "month": 30 * 86400}[period]
    first = window.first(window.slot(now))
    assert window.slot(now - length) >= first
    assert window.slot(now - 1.04 * length) < first


def test_a_total_has_one_slot_and_no_end():
    assert Window().slot(1e9) == Window().slot(2e9)
    assert Window().bounds(1e9) is None


class TestABudget:
    @pytest.mark.parametrize(
        ("text", "limit", "window"),
        [
            ("2000", 2000, Window()),
            ("1M/day", 10**6, Window("day")),
            ("1.5k / hour", 1500, Window("hour")),
            ("10/minute rolling", 10, Window("minute", rolling=True)),
        ],
    )
    def test_in_tokens(self, text, limit, window):
        account = parse_account("search", text)
        assert (account.limit, account.window) == (limit, window)
        assert account.name == f"search {window}"

    def test_in_money(self):
        account = parse_account("all", "$5/month")
        assert (account.limit, account.money, account.name) == (5 * 10**9, True, "all month dollars")

    @pytest.mark.parametrize("text", ["", "/day", "1M/week", "1M/day/day", "-5", "2000 rolling", "1M/query", "$", "5$"])
    def test_that_is_invalid_is_one_line(self, text):
        with pytest.raises(InputError, match=r"^budget.*\(.*\)$"):
            parse_account("all", text)

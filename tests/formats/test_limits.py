"""The table of endpoints and limit fields."""

from shadowprice.formats.limits import ENDPOINTS, LIMIT_FIELDS


def test_every_endpoint_is_limited_by_a_known_field():
    assert {limit_field for limit_field, _ in ENDPOINTS.values()} < set(LIMIT_FIELDS)


def test_a_chat_is_not_taken_for_a_completion():
    """Readers take the first end that matches."""
    assert next(end for end in ENDPOINTS if "/v1/chat/completions".endswith(end)) == "/chat/completions"

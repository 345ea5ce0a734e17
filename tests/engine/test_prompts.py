"""Prompts that state the limit."""

import copy

import pytest

from shadowprice.engine.prompts import with_limit

STATED = "Keep the entire response within at most 90 tokens."


def user(content):
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": [user("Why?")]}, {"messages": [user(f"Why?\n\n{STATED}")]}),
        (
            {"messages": [{"role": "system", "content": "s"}, user("a"), {"role": "assistant", "content": "b"}]},
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    user(f"a\n\n{STATED}"),
                    {"role": "assistant", "content": "b"},
                ]
            },
        ),
        (
            {"messages": [user("first"), user([{"type": "text", "text": "last"}])]},
            {
                "messages": [
                    user("first"),
                    user([{"type": "text", "text": "last"}, {"type": "text", "text": STATED}]),
                ]
            },
        ),
        (
            {"messages": [{"role": "system", "content": "only this"}]},
            {"messages": [{"role": "system", "content": "only this"}, user(STATED)]},
        ),
        ({"prompt": "Q: why?\nA:"}, {"prompt": f"{STATED}\n\nQ: why?\nA:"}),
        ({"prompt": ["Q: why?\nA:"]}, {"prompt": [f"{STATED}\n\nQ: why?\nA:"]}),
        ({"prompt": [5, 6, 7]}, {"prompt": [5, 6, 7]}),
        ({"prompt": [[5, 6, 7]]}, {"prompt": [[5, 6, 7]]}),
    ],
)
def test_where_it_is_stated(body, expected):
    body["temperature"] = expected["temperature"] = 0.3
    before = copy.deepcopy(body)
    assert with_limit(body, 90) == expected
    assert body == before

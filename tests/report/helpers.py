"""What tests of pages share: a parser, hostile text, a row of the main comparison."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)> \"'& $x_1$ {{ 7 * 7 }} \ud800\x00"


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.ids, self.references, self.handlers, self.sources = [], [], [], [], []
        self.text = ""
        self._hidden = 0
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._hidden += tag in ("script", "style")
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            elif name.startswith("on"):
                self.handlers.append(name)
            elif name in ("src", "srcset", "data", "action", "poster"):
                self.sources.append(value)
            elif name in ("href", "xlink:href"):
                self.references.append(value)
            self.references += [f"#{each}" for each in re.findall(r"url\(#([^)]+)\)", value or "")]

    def handle_endtag(self, tag):
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data):
        if not self._hidden:
            self.text += data

    @property
    def words(self):
        """The text with single spaces."""
        return " ".join(self.text.split())


def main_row(policy, solved, *, stream="balanced", budget=100, accounting="reserved", **more):
    row = {"table": "main", "model": "m", "stream": stream, "budget": budget, "policy": policy}
    return {**row, "accounting": accounting, "solved": solved, "source": "ours", **more}


def summary_of(folder):
    return json.loads((folder / "manifest.json").read_text())["summary"]


def steps_of(run):
    return {step.label: step.tokens for step in run.steps}

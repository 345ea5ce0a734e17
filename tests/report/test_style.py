"""Figures can be read by everybody, and drawing them changes nothing else."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from shadowprice.market import POLICIES as KNOWN
from shadowprice.report.figures import write_figures
from shadowprice.report.labels import NAMES, Variant
from shadowprice.report.style import POLICIES, look


class TestColours:
    """The contrast that WCAG 2 requires: 4.5 for text, 3 for lines and points."""

    @pytest.fixture(params=["light", "dark"])
    def colours(self, request):
        style = (files("shadowprice.report") / "templates" / "page.css").read_text()
        blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
        light, dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in blocks)
        return light if request.param == "light" else {**light, **dark}

    @pytest.mark.parametrize("ground", ["ground", "card", "soft"])
    def test_text_can_be_read(self, colours, ground):
        for name in ("ink", "muted"):
            assert contrast(colours[name], colours[ground]) >= 4.5, name

    def test_lines_can_be_seen(self, colours):
        for name in ("blue", "vermillion", "green", "purple", "grey"):
            assert contrast(colours[name], colours["ground"]) >= 3, name

    def test_coloured_words_can_be_read(self, colours):
        for name in ("blue", "vermillion", "green"):
            assert contrast(colours[name], colours["soft"]) >= 3.5, name


def contrast(one, other):
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_policy_has_a_name_and_a_look_of_its_own():
    assert set(KNOWN) <= set(NAMES)
    assert set(NAMES) == set(POLICIES)
    assert len(set(NAMES.values())) == len(NAMES)
    variants = [Variant(policy, reclaim) for policy in NAMES for reclaim in (False, True)]
    assert len({look(each) for each in variants}) == len(variants)


def test_drawing_changes_no_global_settings(results, tmp_path):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    write_figures(results.table("noise"), tmp_path)
    assert dict(mpl.rcParams) == before

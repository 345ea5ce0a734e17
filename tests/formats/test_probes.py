"""Probes are read from one field of a trace."""

import pytest

from shadowprice import Trace
from shadowprice.errors import InputError
from shadowprice.formats.probes import Probe, latest_probe, probes_of


def trace(landed):
    return Trace("q", "?", 100, extra={"landed": landed} if landed is not None else {})


def test_probes_are_in_the_order_of_their_ages_and_the_latest_before_an_age_is_found():
    probes = probes_of(trace({"64": [True, 4, "12"], "0": [False, 2, None], "8": [False, 16]}))
    assert list(probes) == [0, 8, 64]
    assert latest_probe(probes, 63) == Probe(False, 16, None)
    assert latest_probe(probes, 64.5) == Probe(True, 4, "12")
    assert latest_probe(probes, -1) is None


def test_a_trace_without_probes_has_none():
    assert probes_of(trace(None)) == probes_of(trace("another meaning")) == {}


@pytest.mark.parametrize("landed", [{"x": [True, 4]}, {"0": [True]}, {"0": 5}, {"0": [True, "many"]}])
def test_anything_else_names_the_trace_and_the_form(landed):
    with pytest.raises(InputError, match=r"trace 'q': landed is .*write it as"):
        probes_of(trace(landed))

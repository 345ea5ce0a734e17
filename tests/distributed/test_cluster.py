"""Ray is found where it is installed, and errors of other processes are shown as our own."""

import sys
from types import SimpleNamespace

import pytest

from shadowprice.distributed.cluster import connect, load_ray, plain_errors
from shadowprice.errors import InputError, MissingExtra


def test_without_ray_the_error_gives_the_line_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'shadowprice\[ray\]'"):
        load_ray()


def test_the_driver_has_to_be_on_the_cluster(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", sys)
    with pytest.raises(InputError, match="run it on a node of the cluster"):
        connect("ray://10.0.0.1:10001")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "[::1]:1", "nowhere", "127.0.0.1:six"])
def test_an_address_where_nothing_listens_is_refused_at_once(monkeypatch, address):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(InputError, match=r"--ray .*(no connection|not an address)"):
        connect(address)


def test_an_error_of_another_process_is_one_line():
    text = "Traceback ...\n  File ...\nshadowprice.errors.InputError: dataset: no column (name it)\n\nThe above ..."
    with pytest.raises(InputError, match=r"^dataset: no column \(name it\)$"), plain_errors():
        raise RuntimeError(text)


def test_other_errors_are_left_alone():
    with pytest.raises(RuntimeError, match="disk"), plain_errors():
        raise RuntimeError("disk")

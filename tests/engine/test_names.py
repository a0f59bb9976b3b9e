"""Where an address leads, and whether that is this machine."""

from __future__ import annotations

import errno
import socket

import pytest

from specprof.engine import names


@pytest.mark.parametrize(
    ("base_url", "place"),
    [
        ("http://server.example:8123", ("server.example", 8123)),
        ("http://server.example/pool/a", ("server.example", 80)),
        ("https://server.example", ("server.example", 443)),
        ("http://[::1]:8000", ("::1", 8000)),
    ],
)
def test_the_place_that_an_address_names(base_url: str, place: tuple[str, int]) -> None:
    assert names.place_of(base_url) == place


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("127.0.0.1", True),
        ("127.0.0.53", True),  # RFC 1122, 3.2.1.3: all of 127/8
        ("::1", True),
        ("localhost", True),
        ("10.0.0.5", False),
        ("0.0.0.0", False),
        ("localhost.example", False),
    ],
)
def test_loopback_is_this_machine_and_nothing_else_is(host: str, is_here: bool) -> None:
    assert names.is_loopback(host) is is_here


def test_numbers_need_no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "RESOLVE_S", 0.0)
    ((family, kind, *_, address),) = names.addresses("127.0.0.1", 8000)
    assert (family, kind, address) == (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 8000))


@pytest.mark.parametrize(
    "problem",
    [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        TimeoutError("timed out"),
    ],
)
def test_what_this_machine_lacks_is_no_refusal(problem: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> socket.socket:
        raise problem

    monkeypatch.setattr(names, "connect", fails)
    assert names.refusal("server.example", 80, 1.0) is None


def test_a_port_where_nobody_listens_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        assert names.refusal(*place, 1.0) is None
    assert isinstance(names.refusal(*place, 1.0), ConnectionRefusedError)


def test_what_can_be_no_name_is_one_that_does_not_exist() -> None:
    """RFC 1035, 2.3.4: a label has 63 octets at most."""
    with pytest.raises(socket.gaierror, match="can be no name"):
        names.connect(f"{'a' * 64}.example", 80, 1.0)

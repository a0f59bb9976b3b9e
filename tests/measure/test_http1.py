"""HTTP/1.1 read by hand: heads, bodies cut anywhere, and everything that is not HTTP."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprof.measure.http1 import BadAnswer, ChunkedBody, Head, OpenBody, SizedBody, parse_head
from specprof.measure.reads import Reads


def chunked(parts, extension=b"", trailers=b""):
    """RFC 9112, 7.1: size in hexadecimal, CRLF, data, CRLF; a last chunk of size 0, trailers, an empty line."""
    chunks = [b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts]
    return b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"


def cut(data, at):
    """The data in pieces, cut at the given places."""
    ends = sorted({min(place, len(data)) for place in at} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def fed(body, pieces):
    """Whether each piece ended the body."""
    return [body.feed(i, piece) for i, piece in enumerate(pieces)]


parts_of_bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
places = st.lists(st.integers(0, 400), max_size=12)
extensions = st.sampled_from([b"", b";name=value", b" "])
trailers = st.sampled_from([b"", b"Expires: never\r\n", b"A: 1\r\nB: 2\r\n"])


@given(parts_of_bodies, places, extensions, trailers)
def test_a_chunked_body_comes_back_however_it_was_cut(parts, at, extension, trailing):
    reads = Reads()
    pieces = cut(chunked(parts, extension, trailing), at)
    ended = fed(ChunkedBody(reads), pieces)
    assert reads.body() == b"".join(parts)
    assert ended == [False] * (len(pieces) - 1) + [True]
    assert all(data for _, data in reads)


@given(parts_of_bodies, places)
def test_bytes_carry_the_number_of_the_piece_that_brought_them(parts, at):
    encoded = chunked(parts)
    reads = Reads()
    fed(ChunkedBody(reads), cut(encoded, at))
    whose, start = [], 0
    for number, piece in enumerate(cut(encoded, at)):
        whose += [number] * len(piece)
        start += len(piece)
    wanted, position = [], 0
    for part in parts:
        position += len(b"%x\r\n" % len(part))
        wanted += whose[position : position + len(part)]
        position += len(part) + 2
    assert [number for number, data in reads for _ in data] == wanted


@pytest.mark.parametrize("last", [b"0\r\n\r\n", b"00\r\n\r\n", b"0;ext\r\n\r\n"])
def test_a_last_chunk_by_itself_ends_the_body(last):
    reads = Reads()
    assert fed(ChunkedBody(reads), [b"2\r\nab\r\n", last]) == [False, True]
    assert list(reads) == [(0, b"ab")]


def test_whole_chunks_are_kept_though_what_follows_them_is_not_http():
    reads = Reads()
    with pytest.raises(BadAnswer):
        ChunkedBody(reads).feed(7, b"3\r\nabc\r\n2\r\nde\r\nnot a size\r\n")
    assert list(reads) == [(7, b"abcde")]


def test_two_chunks_in_one_read_are_one_read():
    reads = Reads()
    assert fed(ChunkedBody(reads), [b"2\r\nab\r\n3\r\ncde\r\n", b"0\r\n\r\n"]) == [False, True]
    assert list(reads) == [(0, b"abcde")]


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"xyz\r\nab\r\n",
        b"-2\r\nab\r\n",
        b"+2\r\nab\r\n",
        b"1_0\r\n0123456789abcdef\r\n",
        b" 2\r\nab\r\n",
        b"2\nab\r\n",
        b"2\r\nabc\r\n0\r\n\r\n",
        b"0\r\n\r\nHTTP/1.1 200 OK\r\n",
        b"1" * 70_000,
        b"data: no chunks at all\n\n",
    ],
)
def test_what_is_not_chunked_is_refused(data):
    with pytest.raises(BadAnswer):
        ChunkedBody(Reads()).feed(0, data)


@given(st.binary(max_size=300), places)
def test_any_bytes_end_in_a_body_or_in_bad_answer(data, at):
    with suppress(BadAnswer):
        fed(ChunkedBody(Reads()), cut(data, at))


@given(st.binary(max_size=200))
def test_any_head_ends_in_a_head_or_in_bad_answer(data):
    for head in (data, b"HTTP/1.1 200 OK\r\n" + data):
        with suppress(BadAnswer):
            assert parse_head(head).status >= 100


@given(st.binary(min_size=1, max_size=60), places)
def test_a_sized_body_ends_with_its_last_byte(data, at):
    reads = Reads()
    ended = fed(SizedBody(reads, len(data)), cut(data, at))
    assert reads.body() == data
    assert ended.index(True) == min(
        i for i, _ in enumerate(ended) if len(b"".join(cut(data, at)[: i + 1])) == len(data)
    )


def test_a_sized_body_that_is_too_long_is_refused():
    with pytest.raises(BadAnswer, match="Content-Length"):
        SizedBody(Reads(), 3).feed(0, b"four")


def test_an_open_body_never_ends_by_itself():
    reads = Reads()
    assert fed(OpenBody(reads), [b"a", b"", b"b"]) == [False] * 3
    assert list(reads) == [(0, b"a"), (2, b"b")]


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", Head(200, True, None, True)),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding:CHUNKED\r\nContent-Length: 7", Head(200, True, None, True)),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 12", Head(404, False, 12, True)),
        (b"HTTP/1.1 200\r\nContent-Length: 12\r\ncontent-length: 12", Head(200, False, 12, True)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: Close", Head(200, False, 12, False)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 12", Head(200, False, 12, False)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 12\r\nConnection: keep-alive", Head(200, False, 12, True)),
        (b"HTTP/1.1 200 OK", Head(200, False, None, False)),
        (b"HTTP/1.1 204 No Content", Head(204, False, 0, True)),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0", Head(302, False, 0, True)),
    ],
)
def test_heads(head, wanted):
    assert parse_head(head) == wanted


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.6", "it begins with 'SSH-2.0-OpenSSH_9.6'"),
        (b"HTTP/2 200", "it begins with 'HTTP/2 200'"),
        (b"HTTP/1.1 20x OK", "it begins with 'HTTP/1.1 20x OK'"),
        (b"HTTP/1.1 200 OK\r\nno colon", "its head holds 'no colon'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2", "it has Content-Length: '1,2'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1", "it has Content-Length: '-1'"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip", "it has Content-Encoding: 'gzip', and identity was asked for"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked", "it has Transfer-Encoding: 'gzip, chunked'"),
    ],
)
def test_heads_that_are_refused(head, why):
    with pytest.raises(BadAnswer) as refused:
        parse_head(head)
    assert str(refused.value) == why

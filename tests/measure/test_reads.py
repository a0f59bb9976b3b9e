"""What arrived is kept compactly and comes back whole: from memory, from the temporary file, from another process."""

from __future__ import annotations

import gc
import os
import pickle
import tracemalloc

import pytest

from specprof.measure import reads
from specprof.measure.reads import BLOCK_BYTES, BYTES_PER_READ, Reads, Spool

EVENT = b"data: " + b"x" * 200 + b"\n\n"  # 208 bytes


def filled(num_reads, spool=None, size=208):
    return Reads([(1_000_000 * i, bytes([i % 251]) * size) for i in range(num_reads)], spool)


@pytest.mark.parametrize("spool", [None, Spool()])
@pytest.mark.parametrize("num_reads", [0, 1, 3, 2 * BLOCK_BYTES // len(EVENT)])
def test_what_was_appended_comes_back_in_order(num_reads, spool):
    kept = filled(num_reads, spool)
    wanted = [(1_000_000 * i, bytes([i % 251]) * 208) for i in range(num_reads)]
    assert list(kept) == wanted
    assert list(kept) == wanted, "and again"
    assert len(kept) == num_reads
    assert kept.body() == b"".join(data for _, data in wanted)
    assert list(pickle.loads(pickle.dumps(kept))) == wanted


def test_a_read_costs_its_data_and_twelve_bytes():
    """An instant in 8 bytes and a size in 4; buffers that grow keep an eighth in hand."""
    num_reads = 5_000
    gc.collect()
    tracemalloc.start()
    try:
        kept = Reads()
        before = tracemalloc.get_traced_memory()[0]
        for i in range(num_reads):
            kept.append(i, EVENT)
        per_read = (tracemalloc.get_traced_memory()[0] - before) / num_reads
    finally:
        tracemalloc.stop()
    assert len(kept) == num_reads
    assert per_read <= (len(EVENT) + BYTES_PER_READ) * 9 / 8 + 1


def test_a_stream_s_memory_does_not_grow_with_its_length():
    """At most a block, its instants and sizes, and one copy of them on their way into the file."""
    peaks = {}
    for num_reads in (4_000, 40_000):
        spool = Spool()
        kept = Reads(spool=spool)
        gc.collect()
        tracemalloc.start()
        try:
            for i in range(num_reads):
                kept.append(i, EVENT)
            peaks[num_reads] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(kept) == num_reads
    per_block = BLOCK_BYTES + len(EVENT) + BYTES_PER_READ * (BLOCK_BYTES // len(EVENT) + 1)
    assert peaks[40_000] <= 3 * per_block
    per_place = 64 + 16 + 3 * 32 + 8  # a tuple the collector knows, of three integers, and its place in a list
    more_blocks = 36_000 * len(EVENT) // BLOCK_BYTES
    assert peaks[40_000] - peaks[4_000] <= per_place * 9 / 8 * more_blocks


def test_streams_that_ended_stay_in_memory_until_their_share_is_used_up():
    spool = Spool(kept_bytes=10_000)
    small, large = filled(10, spool, size=100), filled(200, spool, size=100)
    small.close()
    large.close()
    assert (small._blocks, len(large._blocks)) == ([], 1)
    assert list(large) == list(filled(200, size=100))


def test_a_full_disk_costs_memory_and_no_data(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    spool = Spool(kept_bytes=0)
    before = filled(400, spool)
    monkeypatch.setattr(reads.os, "pwrite", full)
    after = filled(400, spool)
    after.close()
    assert list(before) == list(after) == list(filled(400))


def test_a_disk_that_takes_half_a_block_costs_no_data(monkeypatch):
    whole = os.pwrite
    monkeypatch.setattr(reads.os, "pwrite", lambda file, block, at: whole(file, block[: len(block) // 2], at))
    kept = filled(400, Spool())
    assert list(kept) == list(filled(400))


def test_the_file_has_no_name_and_is_closed_with_its_last_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(reads.tempfile, "tempdir", str(tmp_path))
    spool = Spool()
    kept = filled(400, spool)
    descriptor = spool._file
    assert list(tmp_path.iterdir()) == []
    os.fstat(descriptor)
    del spool, kept
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_file_that_was_cut_short_is_not_read_as_if_it_were_whole():
    spool = Spool()
    kept = filled(400, spool)
    os.ftruncate(spool._file, 100)
    with pytest.raises(OSError, match="cut short"):
        list(kept)

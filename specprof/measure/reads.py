"""What arrived: the time and the bytes of every read of a stream, without an object for each.

A read costs 12 bytes beside its data. A stream that grows beyond a block is put away in a temporary file, and so is
one that ended once the streams of its client fill their share of memory: however long a cell is, what a client holds
is bounded by how many streams are open.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator

BLOCK_BYTES = 64 * 1024  # of data, before a stream that is still open is put away so far; about 300 reads of vLLM's
KEPT_BYTES = 16 * 2**20  # of streams that ended, in memory, before others go to the file
BYTES_PER_READ = 12  # an instant in 8, a size in 4

_AT_NS, _SIZE = "q", "I"  # array types: 8 bytes, 4 bytes


class Spool:
    """The temporary file of one client's streams. It has no name, so it is gone however the process ends.

    A disk that takes no more costs memory and no data: what it refuses stays where it was.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._room = kept_bytes
        self._file: int | None = None
        self._end = 0
        self.is_full = False

    def keeps(self, num_bytes: int) -> bool:
        """Whether a stream that ended may stay in memory; its bytes then count for those after it."""
        if num_bytes > self._room and not self.is_full:
            return False
        self._room -= num_bytes
        return True

    def write(self, block: bytes) -> int | None:
        """Where the block lies in the file; None if the disk refused it."""
        try:
            if self._file is None:
                self._file = _nameless_file()
                weakref.finalize(self, os.close, self._file)
            written = os.pwrite(self._file, block, self._end)
        except OSError:
            written = 0
        if written < len(block):
            self.is_full = True
            return None
        self._end += written
        return self._end - written

    def read(self, offset: int, num_bytes: int) -> bytes:
        """A block again. Raises OSError if the file cannot be read."""
        assert self._file is not None  # noqa: S101 - an offset is of a block that was written
        block = os.pread(self._file, num_bytes, offset)
        if len(block) < num_bytes:
            raise OSError(f"a temporary file in {tempfile.gettempdir()} was cut short while in use")
        return block


def _nameless_file() -> int:
    """A descriptor of our own: the file object that tempfile makes would close it together with itself."""
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


class Reads:
    """The reads of one stream in the order they returned: `append(at_ns, data)`, iteration as `(at_ns, data)`, `len`.

    `spool`: where to put away what need not be in memory; without one everything is. A copy that was sent to another
    process holds everything itself.
    """

    __slots__ = ("_at_ns", "_blocks", "_data", "_num_put_away", "_sizes", "spool")

    def __init__(self, reads: Iterable[tuple[int, bytes]] = (), spool: Spool | None = None) -> None:
        self.spool = spool
        self._blocks: list[tuple[int, int, int]] = []  # offset in the file, reads, bytes of data
        self._num_put_away = 0
        self._start_block()
        for at_ns, data in reads:
            self.append(at_ns, data)

    def append(self, at_ns: int, data: bytes) -> None:
        """Keep one read: the hot path."""
        self._at_ns.append(at_ns)
        self._sizes.append(len(data))
        self._data += data
        if len(self._data) > BLOCK_BYTES:
            self._put_away()

    def close(self) -> None:
        """Nothing more will come."""
        if self.spool is not None and not self.spool.keeps(len(self._data) + BYTES_PER_READ * len(self._sizes)):
            self._put_away()

    def body(self) -> bytes:
        """All the data, joined."""
        return b"".join(data for _, data in self)

    def __len__(self) -> int:
        return self._num_put_away + len(self._sizes)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for offset, num_reads, num_bytes in self._blocks:
            yield from self._brought_back(offset, num_reads, num_bytes)
        yield from _paired(self._at_ns, self._sizes, self._data)

    def __reduce__(self) -> tuple[object, ...]:
        at_ns, sizes, data = array(_AT_NS), array(_SIZE), bytearray()
        for instant, read in self:
            at_ns.append(instant)
            sizes.append(len(read))
            data += read
        return _restored, (at_ns, sizes, data)

    def _start_block(self) -> None:
        self._at_ns, self._sizes, self._data = array(_AT_NS), array(_SIZE), bytearray()

    def _put_away(self) -> None:
        """Move what is in memory to the file, if there is one that takes it."""
        if self.spool is None or self.spool.is_full or not self._sizes:
            return
        offset = self.spool.write(b"".join((self._at_ns.tobytes(), self._sizes.tobytes(), self._data)))
        if offset is None:
            return
        self._blocks.append((offset, len(self._sizes), len(self._data)))
        self._num_put_away += len(self._sizes)
        self._start_block()

    def _brought_back(self, offset: int, num_reads: int, num_bytes: int) -> Iterator[tuple[int, bytes]]:
        assert self.spool is not None  # noqa: S101 - only a spool has blocks
        block = self.spool.read(offset, num_reads * BYTES_PER_READ + num_bytes)
        at_ns, sizes = array(_AT_NS), array(_SIZE)
        sizes_at, data_at = num_reads * at_ns.itemsize, num_reads * BYTES_PER_READ
        at_ns.frombytes(block[:sizes_at])
        sizes.frombytes(block[sizes_at:data_at])
        return _paired(at_ns, sizes, block[data_at:])


def _paired(at_ns: array[int], sizes: array[int], data: bytes | bytearray) -> Iterator[tuple[int, bytes]]:
    start = 0
    for instant, size in zip(at_ns, sizes, strict=True):
        yield instant, bytes(data[start : start + size])
        start += size


def _restored(at_ns: array[int], sizes: array[int], data: bytearray) -> Reads:
    reads = Reads()
    reads._at_ns, reads._sizes, reads._data = at_ns, sizes, data  # noqa: SLF001 - the other half of `__reduce__`
    return reads

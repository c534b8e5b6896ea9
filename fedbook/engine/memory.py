"""Memory for messages: bytes that are written once, and blocks that processes share and use again."""

import ctypes
import mmap
import os
import socket
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

SMALL = 2**16  # bytes: a message below goes through the pipe
_LARGE = 2**22  # bytes from which memory comes from the kernel in huge pages


def joined(parts: Sequence[Any]) -> bytes:
    """The `parts` (bytes, or flat uint8 arrays) one after the other as bytes, each copied once. Large memory
    that is new is asked for in huge pages: to touch it in small ones takes four times as long as the copy."""
    size = sum(map(len, parts))
    if size < _LARGE:
        return b"".join(parts)
    data = _new_bytes(None, size)
    address = _start_of(data)
    _in_huge_pages(address, size)
    room = (ctypes.c_char * size).from_address(address)
    copy_into(room, parts)
    return data


# A new bytes object may be written by whoever made it, as long as nobody else has seen it (Python's C API).
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_start_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyBytes_AsString", ctypes.pythonapi))


def _in_huge_pages(address, size):
    "Ask for huge pages behind the memory at `address`; a system that has none goes on without."
    if sys.platform != "linux":
        return
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = address + size - first
    advise = ctypes.CDLL(None).madvise
    advise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)


def copy_into(room: Any, parts: Sequence[Any]) -> None:
    "Copy `parts` one after the other into the writable memory `room`."
    whole = np.frombuffer(room, np.uint8)
    end = 0
    for part in parts:
        begin, end = end, end + len(part)
        if end > begin:
            whole[begin:end] = np.frombuffer(part, np.uint8)


class Block:
    """Memory that processes share: new, of `size` bytes, or that behind another process's descriptor `fd`,
    which is closed. No file system knows it, so the kernel frees it with the last process that uses it.
    Raises `OSError` where it cannot be had."""

    def __init__(self, number: int, size: int = 0, fd: int | None = None) -> None:
        self.number = number
        self.users = 0
        mine = os.memfd_create("fedbook") if fd is None else fd
        try:
            if fd is None:
                os.posix_fallocate(mine, 0, size)
            self.size = os.fstat(mine).st_size
            self.memory = mmap.mmap(mine, self.size)
        except BaseException:
            os.close(mine)
            raise
        if fd is not None:
            os.close(mine)
            return
        self.fd = mine
        weakref.finalize(self, os.close, mine)

    def lend(self, size: int, back: Callable[[int], None]) -> memoryview:
        "Its first `size` bytes; `back(number)` is called once nobody holds them any more."
        lent = np.frombuffer(self.memory, np.uint8, size)
        weakref.finalize(lent, back, self.number).atexit = False
        return memoryview(lent)


class Place(NamedTuple):
    "Where a packed message lies: in the first `size` bytes of the sender's block `number`, perhaps a `new` one."

    number: int
    size: int
    new: bool = False


class Blocks:
    """The blocks that a process has made, by number, to be written again once nobody uses them: at most
    `spare` of these are kept. `trouble` says why none could be had, where that happened."""

    def __init__(self, spare: int = 4) -> None:
        self.spare = spare
        self.made = 0
        self.trouble = ""
        self.known: dict[int, Block] = {}
        self._newest: tuple[Any, Place] | None = None

    def write(self, parts: Sequence[Any]) -> Place | None:
        "Copy `parts` into a block, which has one user then. None where no block can be had."
        size = sum(map(len, parts))
        block = self._taken(size)
        if block is None:
            return None
        copy_into(block.memory, parts)
        block.users = 1
        return Place(block.number, size)

    def write_once(self, packed: Any) -> Place | None:
        "As `write`, but the message that was written last is not written anew: its block has one user more."
        if self._newest and self._newest[0] is packed:
            place = self._newest[1]
        else:
            self.forget()
            written = self.write([packed])
            if written is None:
                return None
            place = written
            self._newest = packed, place
        self.known[place.number].users += 1
        return place

    def forget(self) -> None:
        "Keep no message for others who are sent the same."
        if self._newest:
            self.release(self._newest[1].number)
        self._newest = None

    def release(self, number: int, count: int = 1) -> None:
        "So many users less of the block `number`."
        self.known[number].users -= count
        free = self._free()
        for block in free[: max(0, len(free) - self.spare)]:
            del self.known[block.number]

    def _free(self):
        free = [block for block in self.known.values() if not block.users]
        return sorted(free, key=lambda block: block.size)

    def _taken(self, size):
        "The smallest free block that is large enough, or a new one."
        for block in self._free():
            if block.size >= size:
                return block
        whole = -(-size // SMALL) * SMALL
        try:
            block = Block(self.made, whole)
        except (OSError, AttributeError) as error:
            self.trouble = str(error)
            return None
        self.made += 1
        self.known[block.number] = block
        return block


class Post:
    """One end of a `pipe` between two processes. What crosses are named tuples whose fields `data` and `state`
    are packed messages. A long message lies in the sender's `blocks`, and the pipe carries its `Place`: `data`
    is lent to the other side until nobody holds it there, `state` is copied."""

    def __init__(self, pipe: Any, blocks: Blocks) -> None:
        self.pipe = pipe
        self.blocks = blocks
        self.socket = socket.socket(fileno=os.dup(pipe.fileno()))
        self.drafts: set[int] = set()
        self.lent: Counter[int] = Counter()
        self.shown: set[int] = set()
        self.theirs: dict[int, Block] = {}
        self.read: list[int] = []

    def fileno(self) -> int:
        return self.pipe.fileno()

    def draft(self, parts: Sequence[Any]) -> Any:
        "A message whose packed `parts` are written for the next `send`: its `Place`, or bytes where it is short."
        place = None
        if sum(map(len, parts)) >= SMALL:
            place = self.blocks.write(parts)
        if place is None:
            return joined(parts)
        self.drafts.add(place.number)
        return place

    def send(self, item: Any, *more: Any) -> None:
        "Send `item`, and more beside it. Raises `OSError` where nobody reads it in time."
        new: list[int] = []
        for name in ("data", "state"):
            packed = getattr(item, name, None)
            if packed is not None:
                placed = self._placed(name, packed, new)
                item = item._replace(**{name: placed})
        for number in self.drafts:
            self.blocks.release(number)
        self.drafts.clear()
        read = self.read[:]
        del self.read[: len(read)]
        alive = sorted(self.blocks.known)
        self.shown.intersection_update(alive)
        self.pipe.send((item, more, read, alive))
        if new:
            descriptors = [self.blocks.known[number].fd for number in new]
            socket.send_fds(self.socket, [b"."], descriptors)

    def _placed(self, name, packed, new):
        place = packed
        if isinstance(packed, Place):
            self.drafts.discard(packed.number)
        elif len(packed) < SMALL:
            return bytes(packed)
        elif name == "data":
            place = self.blocks.write_once(packed)
        else:
            place = self.blocks.write([packed])
        if place is None:
            return bytes(packed)
        self.lent[place.number] += 1
        if place.number in self.shown:
            return place
        self.shown.add(place.number)
        new.append(place.number)
        return place._replace(new=True)

    def recv(self) -> tuple:
        "The next item, and what was sent beside it. Raises `EOFError` or `OSError` where nothing comes."
        item, more, read, alive = self.pipe.recv()
        for number in read:
            self.lent[number] -= 1
            self.blocks.release(number)
        places = {
            name: place
            for name in ("data", "state")
            if isinstance(place := getattr(item, name, None), Place)
        }
        self._open([place.number for place in places.values() if place.new])
        for name, place in places.items():
            block = self.theirs[place.number]
            packed: Any = block.lend(place.size, self.read.append)
            if name == "state":
                packed = bytes(packed)
            item = item._replace(**{name: packed})
        for number in self.theirs.keys() - alive:
            del self.theirs[number]
        return item, *more

    def _open(self, numbers):
        if not numbers:
            return
        _, descriptors, _, _ = socket.recv_fds(self.socket, 1, len(numbers))
        if len(descriptors) < len(numbers):
            raise EOFError("the other side is gone")
        for number, descriptor in zip(numbers, descriptors):
            self.theirs[number] = Block(number, fd=descriptor)

    def close(self) -> None:
        "Close this end, and take back what the other had."
        self.pipe.close()
        self.socket.close()
        for number, count in self.lent.items():
            if count:
                self.blocks.release(number, count)
        self.lent.clear()
        self.theirs.clear()

"""Threads that one thread of the operating system runs by turns: each has a stack, and goes on where it waited.

This is ``swapcontext`` of the C library (POSIX.1-2001). A thread that is never resumed is forgotten, and leaves nothing running.
"""

from __future__ import annotations

import ctypes
import mmap

# As much as a GPU's thread has of local memory, and as much again for the frames in between
STACK = 1 << 20
_PAGE = mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
for _name in ("getcontext", "swapcontext"):
    getattr(_libc, _name).restype = ctypes.c_int
_libc.swapcontext.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_libc.makecontext.restype = None
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

SWAP: int = ctypes.cast(_libc.swapcontext, ctypes.c_void_p).value or 0


class _State(ctypes.Structure):
    """ucontext_t of glibc: what makecontext asks its caller to fill in, and room for the registers."""

    _fields_ = (
        ("flags", ctypes.c_ulong),
        ("link", ctypes.c_void_p),
        ("stack", ctypes.c_void_p),
        ("stack_flags", ctypes.c_int),
        ("stack_size", ctypes.c_size_t),
        ("rest", ctypes.c_longdouble * 512),
    )


class _Stack:
    """Memory for a stack, of which the lowest page may not be touched."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, STACK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        if _libc.mprotect(self.address, _PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect of a stack's last page")


_free: list[_Stack] = []
_back = _State()
# Where the state is kept of whoever resumed a fiber; only one runs at a time.
BACK = ctypes.addressof(_back)


class Fiber:
    """A run of a function, which `resume` continues; it goes back by swapping the state at `address` for that at `BACK`."""

    def __init__(self, function: int, argument: int) -> None:
        self._stack = _free.pop() if _free else _Stack()
        self._state = _State()
        self.address = ctypes.addressof(self._state)
        _libc.getcontext(ctypes.byref(self._state))
        self._state.stack, self._state.stack_size = self._stack.address, STACK
        _libc.makecontext(ctypes.byref(self._state), ctypes.c_void_p(function), 1, ctypes.c_void_p(argument))

    def resume(self) -> None:
        """Run the function until it goes back; never after it has returned."""
        if _libc.swapcontext(BACK, self.address):
            raise OSError(ctypes.get_errno(), "swapcontext")

    def release(self) -> None:
        """Give the stack back, so that the next fiber has it."""
        _free.append(self._stack)

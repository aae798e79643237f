"""Libraries in Rust, tokenizers and llguidance: their panics are no Exceptions; here they become some."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

os.environ["RUST_BACKTRACE"] = "0"  # read at the first panic; what we turn into an exception needs no page on stderr


class LibraryPanic(Exception):
    """A bug in such a library, met with this checkpoint's tokenizer and this input."""


@contextmanager
def panics_as_exceptions(library: str = "tokenizers") -> Iterator[None]:
    """Turns a panic into a LibraryPanic."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise LibraryPanic(f"the {library} library failed on this input: {error}") from error


@contextmanager
def panics_unprinted() -> Iterator[None]:
    """Drops the lines that the library writes to stderr at a panic, and whatever else comes there meanwhile."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)

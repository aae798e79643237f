"""PageKey: what a full page of the KV cache holds, as a hash chain, and how its pages are found again."""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec


class PageKey(msgspec.Struct, frozen=True, eq=False):
    """What a full page holds: its tokens and, through `parent`, every token before them, down to the salt.

    digest: 128 bits over the whole chain. Digests find candidates; `same_chain` decides, since a digest may collide.
    tokens: the page's ids as native 32-bit integers; the salt's bytes in a root, whose parent is None.
    No gc=False: a long chain of what the collector does not see is freed by recursion, and overflows the stack.
    """

    digest: bytes
    tokens: bytes
    parent: "PageKey | None"


def page_digest(parent: bytes, tokens: bytes) -> bytes:
    return blake2b(tokens, key=parent, digest_size=16).digest()


def root_key(salt: str) -> PageKey:
    """The start of a chain. Equal prefixes under different salts share nothing."""
    content = salt.encode()
    return PageKey(page_digest(b"", content), content, None)


def next_key(parent: PageKey, tokens: Sequence[int]) -> PageKey:
    """The key of the full page of `tokens` that follows `parent`."""
    content = array("I", tokens).tobytes()  # unsigned ones are read in half the time
    return PageKey(page_digest(parent.digest, content), content, parent)


def chain(root: PageKey, tokens: Sequence[int], page_size: int) -> Iterator[PageKey]:
    """The keys of all full pages of `tokens`."""
    parent = root
    for end in range(page_size, len(tokens) + 1, page_size):
        parent = next_key(parent, tokens[end - page_size : end])
        yield parent


def stands_for(known: PageKey, key: PageKey, parent: PageKey | None) -> bool:
    """Whether what is known under `key`'s digest is its page, the one that follows `parent`."""
    return known.tokens == key.tokens and same_chain(known.parent, parent)


def same_chain(a: PageKey | None, b: PageKey | None) -> bool:
    """Whether two keys stand for the same salt and the same tokens from position 0; almost always by identity."""
    while a is not b:
        if a is None or b is None or a.tokens != b.tokens:
            return False
        a, b = a.parent, b.parent
    return True

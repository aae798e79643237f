"""Grammars that begin in the middle of an answer, after what opens what they are about, as a tool call.

Until then an answer is drawn as if there were none, in steps that wait for no mask. When that has been read, the row
after it may be in flight and has drawn what it liked: what it drew is left, and the row computed again, masked.
"""

from jaxinfer.engine.sequence import Sequence


def begin_late(sequence: Sequence, vocab_size: int) -> None:
    """A token after which its grammar may begin has been committed: if it does, hold the answer to it from here on."""
    assert sequence.grammar is not None, "a grammar begins late only if there is one"
    sequence.begin_grammar(sequence.grammar, vocab_size)
    if not sequence.is_held:
        return
    if sequence.decoding:
        sequence.num_stale = sequence.dispatched + 1 - len(sequence.tokens)
        sequence.dispatched -= sequence.num_stale
        sequence.decoding = False
    sequence.cache.num_sent = 0  # its slot is written anew: masks say when it may end

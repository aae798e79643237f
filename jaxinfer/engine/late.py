"""Grammars that begin in the middle of an answer, after a token that opens what they are about, as a tool call.

Until then an answer is drawn as if there were none, in steps that wait for no mask. When that token has been read, the
row after it may be in flight and has drawn what it liked: what it drew is left, and the row computed again, masked.
"""

from jaxinfer.engine.sequence import Sequence


def begin_late(sequence: Sequence, vocab_size: int) -> None:
    """The token that begins its grammar has been committed: hold it to that from here on, unless it is a thought."""
    structure = sequence.request.structure
    assert structure is not None and sequence.grammar is not None, "a grammar begins late only if there is one"
    if sequence.is_held or not structure.is_begun(sequence.tokens[sequence.num_prompt :]):
        return
    sequence.hold(True)
    sequence.begin_grammar(sequence.grammar, vocab_size)
    if sequence.decoding:
        sequence.num_stale = sequence.dispatched + 1 - len(sequence.tokens)
        sequence.dispatched -= sequence.num_stale
        sequence.decoding = False
    sequence.num_sent_pages = 0  # its slot is written anew, for the sampler that draws by masks

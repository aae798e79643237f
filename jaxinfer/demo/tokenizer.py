"""The demo model's tokenizer: byte-level BPE, digits one by one, a space never joined to the word after it.

Words do not swallow the space before them as GPT's do, so a name has the same tokens after a space and after a quote:
that is what lets so small a model copy names that it has never seen.
"""

import random
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from jaxinfer.demo.corpus.dialogues import conversation, plain_text
from jaxinfer.demo.rendering import CONTROL_TOKENS, MARK_TOKENS, Renderer

VOCAB_SIZE = 1536
_WORDS = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
_NUM_DOCUMENTS = 20_000


def train_tokenizer(seed: int = 0) -> Tokenizer:
    """Learn the merges from generated conversations; the control tokens get the highest ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(CONTROL_TOKENS) - len(MARK_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARK_TOKENS])
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, "the corpus has enough words to fill the vocabulary"
    return tokenizer


def _texts(seed: int) -> list[str]:
    rng, renderer = random.Random(f"tokenizer {seed}"), Renderer()
    texts = [renderer.document(conversation(rng, 1)) for _ in range(_NUM_DOCUMENTS)]
    texts += [plain_text(rng) for _ in range(_NUM_DOCUMENTS // 20)]
    control = "|".join(re.escape(token) for token in (*CONTROL_TOKENS, *MARK_TOKENS))
    return [part for text in texts for part in re.split(control, text)]  # no merge may span or be spent on them

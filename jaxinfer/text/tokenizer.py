"""Tokenizer: text to token ids and back, from a checkpoint's tokenizer.json. What it says never changes after loading,
so any number of threads may use one.

Control tokens are the special tokens (`<|im_end|>`) and those added tokens that ordinary text never needs (`<think>`):
added, not in the model's own vocabulary, not blank. `plain=True` encodes their spellings as ordinary text.
"""

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from jaxinfer.errors import CheckpointError, InvalidRequest
from jaxinfer.text.control import ControlGuard
from jaxinfer.text.detokenizer import Detokenizer
from jaxinfer.text.emptied import check_emptied
from jaxinfer.text.encoder import EncoderProcess
from jaxinfer.text.growth import MAX_NORMALIZED_CHARS, check_added, check_growth
from jaxinfer.text.linear import nonlinear_rules
from jaxinfer.text.pieces import Pieces, pieces_of
from jaxinfer.text.plain import PlainEncoder, added_around, encode_one, panics_as_refusals
from jaxinfer.text.rust import panics_as_exceptions

_PIECE = 2**15  # characters
# of WordPiece, which takes the square of a word, and of Unigram, which tries each length; published are 100 and 48
_WORD_CHARS, _TOKEN_CHARS = 200, 256


class _Model(msgspec.Struct):
    """Its vocabulary: ids by token, or for Unigram a list of tokens and scores, whose order is the ids.

    max_input_chars_per_word: of WordPiece, where the file says so.
    """

    vocab: dict[str, int] | list[Any]
    max_input_chars_per_word: int = 0
    unk_token: str | None = None
    unk_id: int | None = None


class _AddedToken(msgspec.Struct, gc=False):
    """A token beside the model's vocabulary. normalized: it is looked for in the text after its normalizing."""

    content: str
    normalized: bool = False


class _File(msgspec.Struct):
    """The parts of tokenizer.json that we read ourselves."""

    model: _Model
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None
    added_tokens: list[_AddedToken] = []


class PieceTable(dict[int, bytes]):
    """id -> the bytes it adds to the text; filled on first use. An id without a token adds none, as in transformers."""

    def __init__(self, backend: tokenizers.Tokenizer, pieces: Pieces, skipped: frozenset[int]) -> None:
        super().__init__(dict.fromkeys(skipped, b""))
        self._backend, self._pieces, self._skipped = backend, pieces, skipped

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:  # not stored: there are 2**32 of these
            return b""
        piece = self[token_id] = self._pieces.piece(token, False)
        return piece

    def first(self, token_id: int) -> bytes | None:
        """The same for the first token of a text; None when the id is left out and the next one is the first."""
        token = None if token_id in self._skipped else self._backend.id_to_token(token_id)
        return None if token is None else self._pieces.piece(token, True)


class Tokenizer:
    """A checkpoint's tokenizer.

    vocab_size: highest id + 1 (the logits may be wider).    eos_token_id, bos_token_id: of tokenizer_config.json, or
    None.    special_ids: ids that `skip_special_tokens` leaves out of a text.    control_tokens: spelling -> id.
    normalizer, pre_tokenizer, decoder: those parts of the file, as they stand there.    is_linear: a text takes time in
    proportion to its length; otherwise other processes encode it, and refuse what takes long.
    """

    def __init__(
        self, tokenizer_json: bytes, config: dict[str, Any] | None = None, *, secret: str | None = None
    ) -> None:
        """secret: for a process that encodes for another one, whatever it takes: what names of control tokens begin
        with in plain text.
        """
        self.config = config or {}
        self.backend, file, self._growth = _load(tokenizer_json)
        self.normalizer, self.pre_tokenizer, self.decoder = file.normalizer, file.pre_tokenizer, file.decoder
        self._own_id = self.backend.model.token_to_id  # of the model's vocabulary alone
        self._highest_own_id = _highest_id(file.model.vocab)
        self._unknown_id = _unknown_id(self.backend, file.model)
        self.eos_token_id = self._id_of("eos_token")
        self.bos_token_id = self._id_of("bos_token")
        self.pieces = pieces_of(file.decoder)
        self._tables: dict[bool, PieceTable] = {}
        self._around = added_around(self.backend)
        self._secret = secret or f"\U0010fffd{secrets.token_hex(16)}"
        rules = _nonlinear_rules(file) if secret is None else []
        self._process = EncoderProcess(tokenizer_json, self._secret, rules) if rules else None
        if self._highest_own_id >= self.backend.get_vocab_size(with_added_tokens=False):
            _ = self._plain  # ids with gaps: whether they can be served is seen now

    # What follows from the added tokens is made on first use: a model may have 30,000, and not all who load it encode.

    @cached_property
    def _added(self) -> dict[int, tokenizers.AddedToken]:
        return self.backend.get_added_tokens_decoder()

    @cached_property
    def vocab_size(self) -> int:
        return 1 + max([self._highest_own_id, *self._added])

    @property
    def highest_own_id(self) -> int:
        """Of the vocabulary, without added tokens."""
        return self._highest_own_id

    def ids(self) -> Iterable[int]:
        """Of all tokens. Takes 50 ms where there are 150,000."""
        return self.backend.get_vocab(with_added_tokens=True).values()

    @property
    def ids_around(self) -> list[int]:
        """What `add_special_tokens` puts around a text."""
        before, after = self._around
        return [*before, *after]

    @property
    def added_tokens(self) -> Iterator[tuple[str, int]]:
        """Spellings and ids of those beside the model's vocabulary."""
        return ((token.content, token_id) for token_id, token in self._added.items())

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(token_id for token_id, token in self._added.items() if token.special)

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        tokens = ((token.content, token_id, token) for token_id, token in self._added.items())
        return {text: token_id for text, token_id, token in tokens if self._is_control(text, token)}

    @cached_property
    def guard(self) -> ControlGuard:
        """Finds control tokens in what users write."""
        return ControlGuard(self.control_tokens, self.special_ids)

    @cached_property
    def _plain(self) -> PlainEncoder:
        return PlainEncoder(self.backend, self.control_tokens, self._secret, self._unknown_id, self._around)

    @property
    def is_linear(self) -> bool:
        return self._process is None

    def start(self) -> None:
        """Begin what the first text would wait for; that text is told what is wrong."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.start()

    def close(self) -> None:
        """End the processes that encode; with a tokenizer that has some, no text can be encoded any more."""
        if self._process is not None:
            self._process.close()

    @classmethod
    def from_folder(cls, path: str | Path) -> "Tokenizer":
        """Read tokenizer.json and, if there, tokenizer_config.json. Raises CheckpointError."""
        folder = Path(path)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(
                f"a checkpoint must have a tokenizer.json, and {folder} has none. Save one with transformers: "
                f'AutoTokenizer.from_pretrained(model).save_pretrained("{folder}")'
            )
        return cls(file.read_bytes(), read_tokenizer_config(folder))

    def encode(self, text: str, *, add_special_tokens: bool = True, plain: bool = False) -> list[int]:
        """Token ids of `text`. A raw prompt may spell control tokens and mean them; with `plain` they are plain text.

        Raises InvalidRequest when `text` is no valid Unicode, too long once it is normalized, or takes too long, and
        EngineError when the process that would encode it cannot start.
        """
        _check_unicode(text)
        if self._process is not None:
            return self._process.encode(text, add_special_tokens=add_special_tokens, plain=plain)
        self._check_length(text)
        if plain:
            return self._plain.encode(text, add_special_tokens)
        return encode_one(self.backend, text, add_special_tokens)

    def encode_marked(self, text: str, marker: str) -> list[int]:
        """Token ids of text in which `guard.mark` broke those spellings of control tokens that are ordinary text."""
        named = self.guard.unmark(text, marker, lambda control_token: self._secret + control_token)
        return self.encode(named, add_special_tokens=False, plain=True)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids; ids that name no token add nothing.

        Equal to transformers' decode. One exception: of a run of byte-fallback tokens that is not UTF-8 the valid
        characters are kept (as sentencepiece does), where transformers turns the whole run into U+FFFD. Otherwise a
        stream would have to hold back every newline, which is such a token, until the next one.

        Raises InvalidRequest for ids that cannot be, and for ids that the library fails on.
        """
        if ids and not 0 <= min(ids) <= max(ids) < 2**32:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise InvalidRequest(f"token ids must be 0 to {self.vocab_size - 1}, got {wrong}.", param="tokens")
        if self.pieces is None:
            with panics_as_refusals("tokens"):
                return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.feed(ids) + detokenizer.flush()

    def piece_table(self, skip_special_tokens: bool) -> PieceTable | None:
        """What each id adds to a text, None for a decoder that does not work token by token."""
        if self.pieces is None:
            return None
        if (table := self._tables.get(skip_special_tokens)) is None:
            skipped = self.special_ids if skip_special_tokens else frozenset()
            table = self._tables.setdefault(skip_special_tokens, PieceTable(self.backend, self.pieces, skipped))
        return table

    def _check_length(self, text: str) -> None:
        if len(text) * self._growth <= MAX_NORMALIZED_CHARS:
            return
        num_chars = 0
        for start in range(0, len(text), _PIECE):  # so that a piece's own normal form stays small
            with panics_as_refusals():
                num_chars += len(self.backend.normalizer.normalize_str(text[start : start + _PIECE]))
            if num_chars > MAX_NORMALIZED_CHARS:
                raise InvalidRequest(
                    f"a text must have at most {MAX_NORMALIZED_CHARS} characters once the model's tokenizer has "
                    "normalized it, and this one has more. Shorten it.",
                    param="prompt",
                )

    def _is_control(self, text: str, token: tokenizers.AddedToken) -> bool:
        if len(text) < 2 or token.single_word:
            return False
        return token.special or (self._own_id(text) is None and not text.isspace())

    def _id_of(self, name: str) -> int | None:
        token = token_text(self.config.get(name))
        return None if token is None else self.backend.token_to_id(token)


def token_text(token: Any) -> str | None:
    """A token of tokenizer_config.json, which is a string or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json as a dict, empty when there is none. Raises CheckpointError."""
    file = folder / "tokenizer_config.json"
    return read_json_object(file) if file.is_file() else {}


def read_json_object(file: Path) -> dict[str, Any]:
    """A file that holds a JSON object. Raises CheckpointError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"{file} must hold a JSON object: {error}. Download it again.") from error


def check_tokenizer_file(tokenizer_json: bytes) -> None:
    """Raise CheckpointError for a damage that shows without the library, which takes seconds for a large vocabulary."""
    with _readable():
        _parts(tokenizer_json)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Make a CheckpointError of whatever else says that tokenizer.json cannot be read."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointError(
            f"tokenizer.json must be readable by tokenizers {tokenizers.__version__}, which says: {error}. "
            "Download it again, or save it again with transformers."
        ) from error


def _parts(tokenizer_json: bytes) -> tuple[_File, int]:
    """Our parts of the file, and how many characters one may become when it is normalized."""
    file = msgspec.json.decode(tokenizer_json, type=_File)
    growth = check_growth(file.normalizer, file.pre_tokenizer, file.decoder)
    check_added(file.post_processor)
    return file, growth


def _load(tokenizer_json: bytes) -> tuple[tokenizers.Tokenizer, _File, int]:
    """The library's tokenizer, and what _parts says."""
    with _readable():
        file, growth = _parts(tokenizer_json)
        with panics_as_exceptions():
            backend = tokenizers.Tokenizer.from_buffer(tokenizer_json)
            check_emptied(backend, file.normalizer, [token.content for token in file.added_tokens if token.normalized])
    backend.no_truncation()  # a file may carry both; nothing is cut or padded behind the user's back
    backend.no_padding()
    return backend, file, growth


def _highest_id(vocab: dict[str, int] | list[Any]) -> int:
    return max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1


def _nonlinear_rules(file: _File) -> list[str]:
    """What may take longer than in proportion to a text, as a message names it."""
    found = nonlinear_rules(file.normalizer, file.pre_tokenizer)
    if (most := file.model.max_input_chars_per_word) > _WORD_CHARS:
        found.append(f"max_input_chars_per_word of {most}")
    tokens = file.model.vocab if isinstance(file.model.vocab, list) else []
    if (longest := max((len(token) for token, _ in tokens), default=0)) > _TOKEN_CHARS:
        found.append(f"token of {longest} characters")
    return found


def _unknown_id(backend: tokenizers.Tokenizer, model: _Model) -> int | None:
    """The id for what the vocabulary cannot spell."""
    return model.unk_id if model.unk_token is None else backend.token_to_id(model.unk_token)


def _check_unicode(text: str) -> None:
    """Piece by piece, for other threads' sake: all of 8 MB at once would hold the interpreter for up to 30 ms."""
    if text.isascii():
        return
    for start in range(0, len(text), _PIECE):
        try:
            text[start : start + _PIECE].encode()
        except UnicodeEncodeError as error:
            at = start + error.start
            raise InvalidRequest(
                f"text must be valid Unicode, but character {at} is half of a surrogate pair "
                f"(U+{ord(text[at]):04X}). Send the whole character.",
                param="prompt",
            ) from error

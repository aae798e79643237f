"""Tokenizer: text to token ids and back, from a checkpoint's tokenizer.json. Nothing mutates it after loading, so any
number of threads may use one.

Control tokens are the special tokens (`<|im_end|>`) and those added tokens that ordinary text never needs (`<think>`):
added, not in the model's own vocabulary, not blank. `plain=True` encodes their spellings as ordinary text.
"""

import secrets
import threading
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from jaxinfer.errors import CheckpointError, InvalidRequest
from jaxinfer.text.detokenizer import Detokenizer
from jaxinfer.text.pieces import Pieces, pieces_of


class _File(msgspec.Struct):
    """The parts of tokenizer.json that we read ourselves."""

    decoder: dict[str, Any] | None = None


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
    """

    def __init__(self, tokenizer_json: bytes, config: dict[str, Any] | None = None) -> None:
        self.config = config or {}
        self.backend = _load(tokenizer_json)
        self.backend.no_truncation()  # a file may carry both; nothing is cut or padded behind the user's back
        self.backend.no_padding()
        self.pieces = pieces_of(msgspec.json.decode(tokenizer_json, type=_File).decoder)
        added = self.backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self.eos_token_id = self._id_of("eos_token")
        self.bos_token_id = self._id_of("bos_token")
        own = self.backend.model.token_to_id
        self.control_tokens = {
            token.content: token_id
            for token_id, token in added.items()
            if len(token.content) > 1
            and not token.single_word
            and (token.special or (own(token.content) is None and not token.content.isspace()))
        }
        self._tables: dict[bool, PieceTable] = {}
        if self.pieces is not None:
            for skip in (False, True):
                skipped = self.special_ids if skip else frozenset()
                self._tables[skip] = PieceTable(self.backend, self.pieces, skipped)
        self._plain_lock = threading.Lock()
        self._plain: tokenizers.Tokenizer | None = None
        # What a control token is called in the plain tokenizer: a name that nobody can type.
        self._secret = f"\U0010fffd{secrets.token_hex(16)}"

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
        """Token ids of `text`. plain: spellings of control tokens become ordinary text, not control tokens.

        Raises InvalidRequest when `text` is no valid Unicode.
        """
        backend = self._plain_backend() if plain else self.backend
        return self._encode(backend, text, add_special_tokens)

    def encode_renamed(self, text: str) -> list[int]:
        """Encode text in which only what `rename` gave counts as a control token."""
        return self._encode(self._plain_backend(), text, False)

    def rename(self, control_token: str) -> str:
        """The name under which `encode_renamed` knows a control token."""
        return self._secret + control_token

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids; ids that name no token add nothing.

        Equal to transformers' decode. One exception: of a run of byte-fallback tokens that is not UTF-8 the valid
        characters are kept (as sentencepiece does), where transformers turns the whole run into U+FFFD.
        """
        if ids and not 0 <= min(ids) <= max(ids) < 2**32:
            raise InvalidRequest(
                f"token ids must be 0 to {self.vocab_size - 1}, got {min(ids) if min(ids) < 0 else max(ids)}.",
                param="tokens",
            )
        if self.pieces is None:
            return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.feed(ids) + detokenizer.flush()

    def piece_table(self, skip_special_tokens: bool) -> PieceTable | None:
        """What each id adds to a text, None for a decoder that does not work token by token."""
        return self._tables.get(skip_special_tokens)

    def _id_of(self, name: str) -> int | None:
        token = token_text(self.config.get(name))
        return None if token is None else self.backend.token_to_id(token)

    def _encode(self, backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
        try:
            return backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:
            bad = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
            if bad is None:
                raise
            raise InvalidRequest(
                f"text must be valid Unicode, but character {bad} is half of a surrogate pair "
                f"(U+{ord(text[bad]):04X}). Send the whole character.",
                param="prompt",
            ) from error

    def _plain_backend(self) -> tokenizers.Tokenizer:
        """The same tokenizer, except that control tokens have secret names. Built when first needed."""
        with self._plain_lock:
            if self._plain is None:
                self._plain = self._build_plain()
            return self._plain

    def _build_plain(self) -> tokenizers.Tokenizer:
        raw = msgspec.json.decode(self.backend.to_str())
        for token in raw["added_tokens"]:
            if token["content"] in self.control_tokens:
                token["content"] = self.rename(token["content"])
        model = raw["model"]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {self._plain_name(token): token_id for token, token_id in model["vocab"].items()}
        else:
            model["vocab"] = [[self._plain_name(token), score] for token, score in model["vocab"]]
        if model.get("unk_token") in self.control_tokens:
            model["unk_token"] = self.rename(model["unk_token"])
        plain = _load(msgspec.json.encode(raw))
        for token, token_id in self.control_tokens.items():
            if plain.token_to_id(self.rename(token)) != token_id:
                raise CheckpointError(
                    f"each added token of tokenizer.json must have the id it is listed with, but {token!r} "
                    f"({token_id}) has another. Save the tokenizer again with transformers."
                )
        return plain

    def _plain_name(self, token: str) -> str:
        return self.rename(token) if token in self.control_tokens else token


def token_text(token: Any) -> str | None:
    """A token of tokenizer_config.json, which is a string or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json as a dict, empty when there is none. Raises CheckpointError."""
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return {}
    try:
        config = msgspec.json.decode(file.read_bytes())
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{file} must be JSON: {error}. Download it again.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} must hold a JSON object, it holds a {type(config).__name__}.")
    return config


def _load(tokenizer_json: bytes) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(tokenizer_json)
    except BaseException as error:  # a panic in the Rust library is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise CheckpointError(
            f"tokenizer.json must be readable by tokenizers {tokenizers.__version__}, which says: {error}. "
            "Download it again, or save it again with transformers."
        ) from error

"""Cache specs: what a layer remembers of each token, or of a sequence, and how many bytes that takes.

A model gives one spec per layer. Layers of equal specs are a Group; a CacheLayout says how groups share the page pool:
every page of the pool has the same bytes and holds `page_size` tokens, so that any group can take any page. A page
holds as many layers of a group as fit into it; a group of more layers has several page tables, whose pages at one
index hold the same tokens.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}  # bytes
MAX_TABLES = 8  # page tables of a model


@dataclasses.dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of every token that a later one may attend to, in pages."""

    kv_heads: int
    head_dim: int  # of a key
    v_dim: int | None  # of a value; None: the values are a view of the keys
    dtype: str
    window: int | None = None  # tokens that a query attends to, itself included; None: all

    @property
    def bytes_per_token(self) -> int:
        """Of one layer."""
        return self.kv_heads * (self.head_dim + (self.v_dim or 0)) * ITEMSIZE[self.dtype]


type Arrays = tuple[tuple[str, tuple[int, ...], str], ...]  # name, shape, dtype


@dataclasses.dataclass(frozen=True, slots=True)
class Recurrent:
    """A state of fixed size per sequence: a row per slot, and rows of snapshots that sequences can resume from.

    What a drawn token brings to the state lies beside it until the sequence's next row says that the token counts.
    """

    arrays: Arrays  # of one row
    snapshots: int  # rows beside those of the slots
    inputs: Arrays = ()  # of one token

    @property
    def bytes_per_row(self) -> int:
        """Of one layer."""
        return _nbytes(self.arrays)


def _nbytes(arrays: Arrays) -> int:
    return sum(math.prod(shape) * ITEMSIZE[dtype] for _, shape, dtype in arrays)


type CacheSpec = PagedKV | Recurrent


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """The layers of one spec."""

    spec: CacheSpec
    layers: tuple[int, ...]


def groups_of(specs: Iterable[CacheSpec]) -> tuple[Group, ...]:
    """The groups of a model, from the spec of each of its layers; in order of their first layers."""
    layers: dict[CacheSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        layers.setdefault(spec, []).append(layer)
    return tuple(Group(spec, tuple(numbers)) for spec, numbers in layers.items())


@dataclasses.dataclass(frozen=True, slots=True)
class CacheLayout:
    """How the groups of a model share one pool of pages of equal bytes."""

    groups: tuple[Group, ...]
    page_size: int  # tokens
    page_bytes: int
    windows: tuple[int | None, ...]  # of each page table, in order of its group
    num_snapshots: int  # rows
    row_bytes: int  # of one slot's or snapshot's state, all recurrent layers together

    def place(self, layer: int) -> tuple[int, int]:
        """Of a layer that has pages: its page table, and which of the layers of a page it is. Of one that has a state:
        its group among those that do, and its index in the group."""
        first = 0
        for spec, layers in _paged(self.groups):
            if layer in layers:
                table, index = divmod(layers.index(layer), self.in_page(spec))
                return first + table, index
            first += -(-len(layers) // self.in_page(spec))
        found = [(i, g.layers.index(layer)) for i, g in enumerate(self.recurrent) if layer in g.layers]
        return found[0]

    @property
    def recurrent(self) -> tuple[Group, ...]:
        """The groups that have a state."""
        return tuple(group for group in self.groups if isinstance(group.spec, Recurrent))

    def in_page(self, spec: PagedKV) -> int:
        """How many layers of a spec a page has room for."""
        return self.page_bytes // self.page_size // spec.bytes_per_token

    def state_bytes(self, max_num_seqs: int) -> int:
        """Of all recurrent layers, for so many slots: their rows and inputs, those of padding too, and snapshots."""
        of_token = sum(_nbytes(g.spec.inputs) * len(g.layers) for g in self.recurrent if isinstance(g.spec, Recurrent))
        snapshots = self.num_snapshots + 1 if self.recurrent else 0
        return (max_num_seqs + 1) * (self.row_bytes + of_token) + snapshots * self.row_bytes

    def num_pages(self, num_tokens: int, num_sequences: int = 1) -> int:
        """Pages for so many sequences of so many tokens whose windows let go of none, the null page included."""
        return num_sequences * -(-num_tokens // self.page_size) * len(self.windows) + 1

    def num_tokens(self, num_pages: int) -> int:
        """How many tokens of one sequence so many pages hold, likewise."""
        return max(0, num_pages - 1) // len(self.windows) * self.page_size

    def read_bytes(self, context: float) -> float:
        """What a decode row behind `context` tokens reads of its pages; a recurrent state is read and written."""
        total = 2.0 * self.row_bytes
        for spec, layers in _paged(self.groups):
            total += len(layers) * spec.bytes_per_token * min(context, spec.window or context)
        return total


def layout_of(specs: Iterable[CacheSpec], page_size: int) -> CacheLayout:
    """The layout whose pages leave the fewest bytes unused, with at most MAX_TABLES page tables."""
    groups = groups_of(specs)
    paged = _paged(groups)
    recurrent = [(g.spec, len(g.layers)) for g in groups if isinstance(g.spec, Recurrent)]
    per_token = min(_page_candidates(paged), key=lambda size: _unused(paged, size), default=0)
    windows: list[int | None] = []
    for spec, layers in paged:
        windows += [spec.window] * _num_tables(spec, layers, per_token)
    return CacheLayout(
        groups,
        page_size,
        page_bytes=per_token * page_size,
        windows=tuple(windows),
        num_snapshots=min((spec.snapshots for spec, _ in recurrent), default=0),
        row_bytes=sum(spec.bytes_per_row * num_layers for spec, num_layers in recurrent),
    )


type _Paged = tuple[PagedKV, tuple[int, ...]]  # a group that has pages


def _paged(groups: Sequence[Group]) -> list[_Paged]:
    return [(group.spec, group.layers) for group in groups if isinstance(group.spec, PagedKV)]


def _page_candidates(paged: list[_Paged]) -> list[int]:
    """Bytes per token that a page could have: those of the layers of one group, cut into equal parts."""
    least = max((spec.bytes_per_token for spec, _ in paged), default=0)
    parts = range(1, MAX_TABLES + 1)
    sizes = {spec.bytes_per_token * -(-len(layers) // count) for spec, layers in paged for count in parts}
    most = max(MAX_TABLES, len(paged))
    return [size for size in sizes if size >= least and sum(_num_tables(*group, size) for group in paged) <= most]


def _num_tables(spec: PagedKV, layers: tuple[int, ...], per_token: int) -> int:
    return -(-len(layers) // (per_token // spec.bytes_per_token))


def _unused(paged: list[_Paged], per_token: int) -> tuple[int, int]:
    """Bytes per token that pages of `per_token` bytes a token leave unused; then how many tables there are."""
    tables = sum(_num_tables(*group, per_token) for group in paged)
    used = sum(spec.bytes_per_token * len(layers) for spec, layers in paged)
    return tables * per_token - used, tables

"""How a checkpoint that is quantized already stores its matrices, as its config.json says. Nothing here imports jax.

models/quantization_config.py reads it, models/as_published.py makes leaves of it.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Literal

HEAD = "lm_head"
CLASS = "Linear"
PATTERN = "re:"  # before a pattern of names
BLOCK = 128  # rows and columns of a block

Packing = Literal["compressed-tensors", "awq", "gptq", "gptq_v2", "fp4"]
Sharing = Literal["block", "channel", "tensor"]


@dataclasses.dataclass(frozen=True)
class Fp8:
    """fp8 weights.    sharing: which of them share a scale: 128 x 128 weights, a row, or all of them.

    scale: the last part of the name of the tensor of scales.
    """

    sharing: Sharing
    scale: str = "weight_scale"

    def block(self, rows: Sequence[int], columns: int) -> tuple[int, int]:
        """Rows and columns that share a scale in a matrix whose members have so many rows."""
        if self.sharing != "block":
            return 1, columns
        # A block of a fused matrix must not reach from one member into the next.
        return (BLOCK if len(rows) == 1 else math.gcd(BLOCK, *rows)), BLOCK

    def __str__(self) -> str:
        return f"fp8 with a scale per {'128 x 128 weights' if self.sharing == 'block' else self.sharing}"


@dataclasses.dataclass(frozen=True)
class Int8:
    """int8 weights.    sharing: which of them share a scale: a row, or all of them.

    packed: whether a word of 32 bits holds four of them.
    """

    sharing: Literal["channel", "tensor"]
    packed: bool = False

    def __str__(self) -> str:
        return f"int8 with a scale per {self.sharing}{' (packed)' if self.packed else ''}"


@dataclasses.dataclass(frozen=True)
class Int4:
    """Weights of 4 bits.    group: columns of a row that share a scale; None: all of them.

    zeros: whether each group has a value that stands for 0; without, 8 does.
    """

    packing: Packing
    group: int | None
    zeros: bool

    @property
    def stores_zeros(self) -> bool:
        """Whether there is a tensor of them. GPTQ stores zeros where 8 stands for 0, too."""
        return self.zeros or self.packing.startswith("gptq")

    def __str__(self) -> str:
        zeros = " and a zero" if self.zeros else ""
        return f"int4 with a scale{zeros} per {f'{self.group} weights' if self.group else 'channel'} ({self.packing})"


@dataclasses.dataclass(frozen=True)
class Fp4:
    """NVFP4: weights of e2m1, a scale in e4m3 per 16 of a row, and one in float32 for all of them.

    tool: whose names tensors have. With ModelOpt's the last scale multiplies the others, with the other's it divides.
    mx: MXFP4 instead, which has a power of 2 per 32 of a row alone.
    """

    tool: Literal["modelopt", "compressed-tensors"]
    mx: bool = False

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return 32 if self.mx else 16

    def __str__(self) -> str:
        return f"{'mxfp4' if self.mx else 'nvfp4'} ({self.tool})"


type Scheme = Fp8 | Int8 | Int4 | Fp4


@dataclasses.dataclass(frozen=True)
class Published:
    """Which matrices a checkpoint stores how.

    groups: names or patterns of modules, and how those are stored; the first that names a module holds, and the
      first with `Linear`, which is every module, where none does.
    excluded: names or patterns of modules that are stored as in other checkpoints.
    head: whether the head is one of the modules.
    A name is a module's, or consecutive parts of it (`down_proj`, `layers.0.mlp`). `re:` begins a pattern, which a
    module's name must begin with.
    """

    groups: tuple[tuple[tuple[str, ...], Scheme], ...]
    excluded: tuple[str, ...] = ()
    head: bool = False

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        return tuple(scheme for _, scheme in self.groups)

    def __str__(self) -> str:
        return " and ".join(dict.fromkeys(str(scheme) for scheme in self.schemes))

    def of(self, module: str) -> Scheme | None:
        """How a module's matrix is stored; None as in other checkpoints."""
        if (module == HEAD and not self.head) or any(_names(name, module) for name in self.excluded):
            return None
        for is_class in (False, True):
            for names, scheme in self.groups:
                if any(_names(name, module) for name in names if (name == CLASS) is is_class):
                    return scheme
        return None


def _names(name: str, module: str) -> bool:
    if name.startswith(PATTERN):
        return re.match(name.removeprefix(PATTERN), module) is not None
    return name == CLASS or f".{name}." in f".{module}."

"""Real shapes of linear layers, listed once: tests, tuners and benchmarks read the same list."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class LinearShapes:
    """The linear layers of one model: its layers, its width, and the widths of what they make."""

    layers: int
    width: int
    qkv: int
    attended: int  # query heads times head_dim
    mlp: int
    bias: bool = False  # of q, k and v
    vocabulary: int = 151_936

    def ops(self) -> tuple[tuple[str, int, int], ...]:
        """(op, out features, in features) of a decode step's products, in order."""
        return (
            ("norm_linear_bias" if self.bias else "norm_linear", self.qkv, self.width),
            ("linear_residual", self.width, self.attended),
            ("norm_gate_up", 2 * self.mlp, self.width),
            ("linear_residual", self.width, self.mlp),
        )


MODELS = {
    "Qwen2.5-1.5B": LinearShapes(28, 1536, 2048, 1536, 8960, bias=True),
    "Qwen3-8B": LinearShapes(36, 4096, 6144, 4096, 12288),
    "Qwen3-0.6B": LinearShapes(28, 1024, 4096, 2048, 3072),
    "Qwen2.5-0.5B": LinearShapes(24, 896, 1152, 896, 4864, bias=True),
    "Llama-3.2-1B": LinearShapes(16, 2048, 3072, 2048, 8192, vocabulary=128_256),
}

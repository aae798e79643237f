"""Paged attention that every device can run. Versions for one architecture are in sm90_*.py and say what they take."""

from jaxinfer_kernels.attention.paged import gather_pages, kv_shape, page_size_of, write_kv
from jaxinfer_kernels.attention.xla_decode import decode_attention
from jaxinfer_kernels.attention.xla_extend import extend_attention

__all__ = ["decode_attention", "extend_attention", "gather_pages", "kv_shape", "page_size_of", "write_kv"]

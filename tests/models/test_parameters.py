"""How the rows of a leaf's sources are split over devices, and copied where there are fewer heads than devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from jaxinfer.errors import ConfigError
from jaxinfer.models.parameters import FileLayout, ParamSpec


def qkv(heads: int, kv_heads: int, head_dim: int) -> ParamSpec:
    rows = tuple(count * head_dim for count in (heads, kv_heads, kv_heads))
    split = PartitionSpec("tensor", None)
    copied = (False, True, True)
    return ParamSpec((sum(rows), 8), (("q", "k", "v"),), rows, split, block=head_dim, copied=copied)


@given(st.integers(0, 4), st.integers(0, 3), st.sampled_from([1, 3]), st.integers(0, 2), st.sampled_from([2, 4]))
def test_each_device_holds_its_query_heads_and_the_kv_heads_they_read(devices, kv, odd, group, head_dim):
    devices, kv_heads, group = 2**devices, odd * 2**kv, 2**group
    heads = kv_heads * group
    spec = qkv(heads, kv_heads, head_dim)
    if heads % devices or (kv_heads % devices and devices % kv_heads):
        with pytest.raises(ConfigError, match=f"tensor-parallel size must divide .* {devices} does not divide"):
            spec.part(0, devices)
        return
    parts = [spec.part(i, devices) for i in range(devices)]
    assert [row for q, _, _ in parts for row in q] == list(range(heads * head_dim)), "each query head is on one device"
    for q, k, v in parts:
        read = sorted({head // group for head in {row // head_dim for row in q}})
        assert list(k) == list(v) == [head * head_dim + i for head in read for i in range(head_dim)]


def test_more_devices_than_query_heads_are_refused():
    with pytest.raises(ConfigError, match="4 does not divide 2 blocks of 16 rows of q; use fewer devices"):
        qkv(2, 1, 16).part(0, 4)


def test_rows_that_an_order_moves_stay_together():
    spec = ParamSpec((12, 8), (("a",),), (12,), PartitionSpec("tensor", None), layout=FileLayout(order=(1, 0, 2)))
    assert [spec.part(i, 4)[0] for i in range(4)] == [range(3 * i, 3 * i + 3) for i in range(4)]
    with pytest.raises(ConfigError, match="6 does not divide 4 blocks of 3 rows of a"):
        spec.part(0, 6)

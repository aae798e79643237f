"""Cache specs: bytes are sums over layers, and layers of several kinds share pages of equal bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.cache.spec import MAX_TABLES, PagedKV, Recurrent, groups_of, layout_of

FULL, WINDOW = PagedKV(4, 256, 256, "bfloat16"), PagedKV(4, 256, 256, "bfloat16", window=1024)
LATENT = PagedKV(1, 576, None, "bfloat16")
DELTA = Recurrent((("delta", (32, 128, 128), "float32"), ("conv", (3, 8192), "bfloat16")), snapshots=8)
SPECS = st.builds(
    PagedKV,
    kv_heads=st.sampled_from((1, 2, 8)),
    head_dim=st.sampled_from((64, 128, 576)),
    v_dim=st.sampled_from((None, 64, 128)),
    dtype=st.sampled_from(("bfloat16", "float32")),
    window=st.sampled_from((None, 128, 4096)),
)


def test_bytes_of_a_token_and_of_a_row_are_those_of_their_arrays():
    assert FULL.bytes_per_token == 2 * 4 * 256 * 2
    assert LATENT.bytes_per_token == 576 * 2
    assert DELTA.bytes_per_row == 32 * 128 * 128 * 4 + 3 * 8192 * 2


def test_layers_of_equal_specs_are_a_group_wherever_they_stand():
    groups = groups_of([WINDOW, FULL, WINDOW, DELTA, FULL])
    assert [(group.spec, group.layers) for group in groups] == [(WINDOW, (0, 2)), (FULL, (1, 4)), (DELTA, (3,))]


def test_equal_layers_have_one_table_and_waste_nothing():
    layout = layout_of([FULL] * 36, page_size=64)
    assert layout.windows == (None,) and layout.page_bytes == 64 * 36 * FULL.bytes_per_token
    assert (layout.num_snapshots, layout.row_bytes) == (0, 0)


@pytest.mark.parametrize(("num_layers", "num_full", "in_a_page"), [(26, 4, 4), (34, 5, 5), (48, 8, 8)])
def test_five_windows_to_one_full_layer_share_pages_of_few_layers(num_layers, num_full, in_a_page):
    specs = [FULL] * num_full + [WINDOW] * (num_layers - num_full)
    layout = layout_of(specs, page_size=64)
    assert layout.page_bytes == 64 * in_a_page * FULL.bytes_per_token
    assert layout.windows.count(None) == 1 and len(layout.windows) <= MAX_TABLES


def test_a_decode_row_reads_all_tokens_of_full_layers_the_window_of_others_and_its_state():
    layout = layout_of([FULL, WINDOW, WINDOW, DELTA], page_size=64)
    pages = FULL.bytes_per_token * (3000 + 2 * 1024)
    assert layout.read_bytes(3000) == pages + 2 * DELTA.bytes_per_row
    assert (layout.row_bytes, layout.num_snapshots) == (DELTA.bytes_per_row, 8)


@given(st.lists(SPECS, min_size=1, max_size=80))
def test_every_group_fits_into_its_tables_and_no_table_is_empty(specs):
    layout = layout_of(specs, page_size=16)
    per_token = layout.page_bytes // 16
    groups = groups_of(specs)
    wanted = [-(-len(group.layers) // (per_token // group.spec.bytes_per_token)) for group in groups]
    assert list(layout.windows) == [g.spec.window for g, n in zip(groups, wanted, strict=True) for _ in range(n)]
    assert len(layout.windows) <= max(MAX_TABLES, len(groups))
    places = [layout.place(layer) for layer in range(len(specs))]
    assert len({*places}) == len(specs), "two layers have one place"
    assert all(layout.windows[table] == spec.window for (table, _), spec in zip(places, specs, strict=True))
    assert all((index + 1) * spec.bytes_per_token <= per_token for (_, index), spec in zip(places, specs, strict=True))
    assert len(layout.windows) * per_token >= sum(spec.bytes_per_token for spec in specs)

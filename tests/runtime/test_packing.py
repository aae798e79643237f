"""What travels to the device: floats and seeds survive their bit-casts, and every row lies where its columns say."""

import numpy as np

from jaxinfer.config import ExtendBucket
from jaxinfer.runtime.mask_table import ANY, Masks
from jaxinfer.runtime.packing import (
    NO_ID,
    MaskColumn,
    RowColumn,
    SamplingColumn,
    extend_layout,
    pack_decode,
    pack_draw,
    pack_extend,
    pack_masks,
    pack_new_masks,
    page_updates,
    sampling_columns,
)
from jaxinfer.runtime.plan import MAX_BANNED, Plan, Row, Sampler, Sampling

ODD = Sampling(temperature=0.3, top_k=17, top_p=0.95, min_p=1e-7, seed=2**64 - 2, sample_index=3)


def test_sampling_survives_the_bit_casts() -> None:
    columns = sampling_columns(ODD)
    floats = columns[: SamplingColumn.MIN_P + 1].view(np.float32)
    np.testing.assert_array_equal(floats, np.array([0.3, 0.95, 1e-7], np.float32))
    high, low = columns[[SamplingColumn.SEED_HIGH, SamplingColumn.SEED_LOW]].view(np.uint32).tolist()
    assert (high << 32) + low == 2**64 - 2
    assert columns[SamplingColumn.TOP_K] == 17
    assert columns[SamplingColumn.SAMPLE_INDEX] == 3


def test_decode_rows_carry_slot_and_at_most_one_page() -> None:
    plan = Plan([Row(3, 10, 1), Row(1, 16, 1, new_pages=[(1, 44)])])
    rest = [[1, 1, 44, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(pack_decode(plan, 4, masked=False), [[3, 0, 0, 0], *rest])
    np.testing.assert_array_equal(pack_decode(plan, 4, masked=True), [[3, 0, 0, 1], *rest])


def test_an_extend_step_lies_where_its_layout_says() -> None:
    plan = Plan(
        [
            Row(2, 16, 3, [7, 8, 9], sample=False, new_pages=[(0, 5), (1, 6)], sampling=ODD),
            Row(4, 90, 1),
            Row(1, 0, 2, [1, 2], new_pages=[(0, 9)]),
        ]
    )
    layout = extend_layout(ExtendBucket(10, 4, 4), page_size=16)
    upload = pack_extend(plan, layout, page_updates(plan.rows), masked=True)
    assert upload.dtype == np.int32
    assert upload.shape == (layout.size,)
    np.testing.assert_array_equal(upload[:10], [7, 8, 9, 0, 1, 2, 0, 0, 0, 0])
    rows = layout.part(upload, "rows")
    expected = [(2, 0, 3, 16, -1, 1, 1), (4, 3, 1, -1, 0, 0, 0), (1, 4, 2, 0, 1, 0, 0), (0, 6, 0, 0, -1, 0, 0)]
    np.testing.assert_array_equal(rows[:, : len(RowColumn)], expected)
    np.testing.assert_array_equal(rows[0, len(RowColumn) :], sampling_columns(ODD))
    assert not rows[1:, len(RowColumn) :].any()
    pages = layout.part(upload, "pages")
    np.testing.assert_array_equal(pages[:4], [[2, 0, 5], [2, 1, 6], [1, 0, 9], [0, 0, 0]])


def test_what_is_banned_travels_to_the_full_sampler_alone() -> None:
    plan = Plan([Row(3, 10, 1, bans=[(5, 7), (ANY, 9)]), Row(2, 4, 1, [5], sample=False), Row(1, 16, 1)])
    full = pack_draw(plan, 4, full=True)
    np.testing.assert_array_equal(full[:, :3], [[3, 7, 9], [1, NO_ID, NO_ID], [0, NO_ID, NO_ID], [0, NO_ID, NO_ID]])
    assert (full[:, 3 : 1 + MAX_BANNED] == NO_ID).all()
    assert full[0, 1 + MAX_BANNED :][:2].tolist() == [5, ANY]
    np.testing.assert_array_equal(pack_draw(plan, 4, full=False), [[3], [1], [0], [0]])


def test_every_step_gets_memory_of_its_own() -> None:
    """A CPU device may read the very array it was given, after the call that gave it has returned."""
    plan = Plan([Row(1, 0, 1, [5])])
    layout = extend_layout(ExtendBucket(4, 2, 2), page_size=16)
    none = page_updates([])
    assert not np.shares_memory(*(pack_extend(plan, layout, none, masked=False) for _ in range(2)))
    assert not np.shares_memory(*(pack_decode(plan, 2, masked=False) for _ in range(2)))


def test_masks_lie_where_their_rows_logits_do() -> None:
    """A row that draws nothing has no logits; one without a mask may draw all."""
    rows = [
        Row(1, 0, 4, [1, 2, 3, 4], sample=False),
        Row(2, 5, 1),
        Row(3, 5, 1, masked=True),
        Row(4, 5, 1, masked=True),
    ]
    masks = Masks(np.array([7, 3], np.int32), np.zeros(0, np.int32), np.zeros((0, 2), np.int32))
    packed = np.full((5, len(MaskColumn)), 9, np.int32)  # what the step before left
    pack_masks(Plan(rows), masks, packed)
    assert packed[:, : MaskColumn.KEEP].tolist() == [[2, -1], [3, 7], [4, 3], [0, -1], [0, -1]]


def test_what_masks_leave_is_kept_for_samplers_alone() -> None:
    """A kernel leaves what was there else; logprobs are of the raw logits."""
    masks = Masks(np.array([7], np.int32), np.zeros(0, np.int32), np.zeros((0, 2), np.int32))
    masked = Row(2, 5, 1, masked=True, logprobs=True)
    silent = Row(3, 0, 2, [1, 2], sample=False, sampler=Sampler.PLAIN)
    packed = np.zeros((4, len(MaskColumn)), np.int32)
    for sampler in (Sampler.PLAIN, Sampler.FULL):
        pack_masks(Plan([masked, Row(1, 5, 1, sampler=sampler)]), masks, packed)
        assert packed[:, MaskColumn.KEEP].tolist() == [1, 0, 0, 0]
    pack_masks(Plan([masked, silent]), masks, packed)
    assert not packed[:, MaskColumn.KEEP].any()


def test_new_masks_go_up_in_blocks() -> None:
    words = np.arange(6, dtype=np.int32).reshape(3, 2)
    masks = Masks(np.zeros(0, np.int32), np.array([9, 4, 5], np.int32), words)
    assert pack_new_masks(masks, 0, 2).tolist() == [[9, 0, 1], [4, 2, 3]]
    assert pack_new_masks(masks, 2, 2).tolist() == [[5, 4, 5], [0, 0, 0]]

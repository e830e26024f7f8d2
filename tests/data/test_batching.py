"""Batches of a shape: every sequence once, in order, none that does not fit, none larger than it need be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.batching import fill_in_order
from halfpint.model.batch import Batch, BatchShape

SHAPES = st.builds(
    BatchShape, tokens=st.integers(16, 60), sequences=st.integers(12, 30), longest=st.integers(5, 16)
).filter(lambda shape: shape.fits(1, 1))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=60), SHAPES)
def test_every_batch_can_be_filled_and_none_could_be_larger(lengths: list[int], shape: BatchShape) -> None:
    groups = list(fill_in_order(lengths, shape))
    assert [index for group in groups for index in group] == list(range(len(lengths)))
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        batch = Batch.from_ids([[1] * lengths[index] for index in group]).fill(shape)
        assert batch.num_tokens == shape.tokens
        assert batch.num_slots == shape.sequences
        if following is not None:
            assert not shape.fits(len(group) + 1, sum(lengths[index] for index in [*group, following[0]]))


@pytest.mark.parametrize("lengths", [[3, 17], [41]])
def test_what_can_never_fit_is_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="does not fit BatchShape"):
        list(fill_in_order(lengths, BatchShape(tokens=40, sequences=9, longest=16)))

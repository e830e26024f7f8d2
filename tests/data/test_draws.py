"""Random numbers depend on where they are used alone, and are as good as random."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from halfpint.data.draws import Draws

ROWS, PLACES = np.repeat(np.arange(1000), 100), np.tile(np.arange(100), 1000)


def test_numbers_are_uniform() -> None:
    found = Draws(0).uniform("any", ROWS, PLACES)
    assert found.min() >= 0 and found.max() < 1
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    assert np.unique(found).size == found.size


@pytest.mark.parametrize("axis", ["row", "place", "epoch", "seed", "purpose"])
def test_neighbours_have_nothing_in_common(axis: str) -> None:
    first = Draws(5, 3).uniform("any", ROWS, PLACES)
    others = {
        "row": Draws(5, 3).uniform("any", ROWS + 1, PLACES),
        "place": Draws(5, 3).uniform("any", ROWS, PLACES + 1),
        "epoch": Draws(5, 4).uniform("any", ROWS, PLACES),
        "seed": Draws(6, 3).uniform("any", ROWS, PLACES),
        "purpose": Draws(5, 3).uniform("other", ROWS, PLACES),
    }
    assert abs(np.corrcoef(first, others[axis])[0, 1]) < 5 / np.sqrt(first.size)


def test_batches_and_order_change_nothing() -> None:
    whole = Draws(1, 2).bits("any", ROWS, PLACES)
    some = np.random.default_rng(0).permutation(ROWS.size)[:500]
    assert np.array_equal(Draws(1, 2).bits("any", ROWS[some], PLACES[some]), whole[some])
    assert Draws(1, 2).bits("any", 7, 3) == whole[703]


def test_whole_numbers_are_below_their_limit_and_even() -> None:
    found = Draws(0).below(7, "any", ROWS, PLACES)
    assert stats.chisquare(np.bincount(found, minlength=7)).pvalue > 1e-3
    limits = 1 + PLACES
    assert (Draws(0).below(limits, "any", ROWS, PLACES) < limits).all()


def test_any_seed_will_do() -> None:
    assert Draws(-1).uniform("any", 1) != Draws(2**63).uniform("any", 1)

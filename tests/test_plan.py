"""Order and draws of an epoch: what a seed means, today and next year, and who may change it."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_pipe as dp
from dali_pipe import Plan, Records, Schema, plan
from dali_pipe.geometry import Ints
from dali_pipe.records import RECORD

RECIPE = dp.Recipe((dp.ResizeShorter(80), dp.RandomCrop(64), dp.RandomFlip(), dp.RandomResizedCrop(32)))


def _records(count: int, labels: Any = None, shards: int = 1) -> Records:
    """Records of images of 100 by 120 pixels in files that nobody made; labels are ids unless given."""
    table = np.zeros(count, RECORD)
    table["id"] = np.arange(count)
    table["label"] = table["id"] if labels is None else labels
    table["shard"] = np.arange(count) * shards // count
    table["height"], table["width"] = 100, 120
    return Records(tuple(Path(f"shard-{k}") for k in range(shards)), table, Schema())


def _philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> list[int]:
    """Four words of Philox-4x64-10 (Salmon et al., SC 2011), written from the paper."""
    mask, c, k = 2**64 - 1, list(counter), list(key)
    for _ in range(10):
        first, second = c[0] * 0xD2E7470EE14C6C93, c[2] * 0xCA5A826395121157
        c = [second >> 64 ^ c[1] ^ k[0], second & mask, first >> 64 ^ c[3] ^ k[1], first & mask]
        k = [k[0] + 0x9E3779B97F4A7C15 & mask, k[1] + 0xBB67AE8584CAA73B & mask]
    return c


def test_our_philox_gives_the_papers_known_answer() -> None:
    answer = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert _philox((0, 0), (0, 0, 0, 0)) == answer


@pytest.mark.parametrize("width", [1, 4, 5, 22])
def test_words_are_philox_at_the_records_id(width: int) -> None:
    """Counter: 1 + the id times the counters a record needs; the stream stands in the highest word."""
    ids = np.array([0, 5, 16_383, 16_384, 99_999])
    steps = -(-width // 4)
    found = plan.words(7, 3, 2, ids, width).tolist()
    for row, number in zip(found, ids.tolist(), strict=True):
        blocks = [_philox((7, 3), (number * steps + step + 1, 0, 0, 2)) for step in range(steps)]
        assert row == [word for block in blocks for word in block][:width]


def test_order_of_ten_records_of_seed_7_epoch_3() -> None:
    assert Plan(_records(10), RECIPE, seed=7).order(3).tolist() == [8, 4, 0, 9, 3, 2, 1, 5, 6, 7]


def test_order_follows_the_first_words() -> None:
    keys = [_philox((7, 3), (number + 1, 0, 0, 0))[0] for number in range(10)]
    assert Plan(_records(10), RECIPE, seed=7).order(3).tolist() == sorted(range(10), key=keys.__getitem__)


def test_uniform_draws_of_seed_7_epoch_3() -> None:
    draws = plan.uniform(7, 3, 1, np.arange(4), 3) * 2**24
    assert draws.tolist() == [
        [3497502, 9032806, 5092882],
        [1472907, 8074205, 610423],
        [2792083, 3146031, 390897],
        [12940586, 15635830, 4429825],
    ]


def test_tickets_of_seed_7_epoch_3() -> None:
    tickets = Plan(_records(10), RECIPE, seed=7).tickets(3, np.array([3, 0, 9]))
    #   keep, label | size | window | flip | window
    assert tickets.tolist() == [
        [1, 3, 80, 96, 13, 30, 64, 64, 0, 10, 8, 38, 34],
        [1, 0, 80, 96, 3, 17, 64, 64, 1, 2, 3, 58, 58],
        [1, 9, 80, 96, 4, 2, 64, 64, 0, 1, 11, 57, 43],
    ]
    assert tickets.dtype == np.int64


def test_the_largest_seed_and_epoch_have_their_words() -> None:
    found = plan.words(2**64 - 1, 2**63, 1, np.array([9]), 4)
    assert found.tolist() == [_philox((2**64 - 1, 2**63), (10, 0, 0, 1))]


def test_words_of_an_id_do_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(0)
    every = plan.words(1, 2, 3, np.arange(60_000), 3)
    for ids in (rng.permutation(60_000)[:500], np.array([59_999]), np.array([4, 4, 20_000, 4]), np.arange(0)):
        np.testing.assert_array_equal(plan.words(1, 2, 3, ids, 3), every[ids])


def test_words_of_scattered_ids_take_no_memory_for_those_between() -> None:
    ids = np.array([10**12, 3, 10**15])
    assert plan.words(0, 0, 0, ids, 4).tolist() == [_philox((0, 0), (i + 1, 0, 0, 0)) for i in ids.tolist()]


def test_uniform_draws_fill_0_to_1() -> None:
    draws = plan.uniform(0, 0, 1, np.arange(50_000), 4)
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    np.testing.assert_array_equal(draws * 2**24, np.floor(draws * 2**24))
    np.testing.assert_allclose(draws.mean(axis=0), 0.5, atol=0.006)  # four deviations
    np.testing.assert_allclose(np.histogram(draws, 10, (0, 1))[0], 20_000, rtol=0.03)


def test_seeds_epochs_and_streams_differ() -> None:
    ids = np.arange(100)
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1)]
    assert len({plan.words(*key, ids, 2).tobytes() for key in keys}) == len(keys)


SHUFFLES: list[plan.Shuffle] = [True, "exact"]
VIEWS = {
    "one shard": _records(300),
    "seven shards": _records(300, shards=7),
    "every other": _records(600, shards=3).select(np.arange(0, 600, 2)),
    "reversed": _records(300, shards=3).select(slice(None, None, -1)),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("shuffle", [*SHUFFLES, False])
@pytest.mark.parametrize("max_segments", [10, 65_536])
def test_an_epoch_has_every_record_once(view: Records, shuffle: plan.Shuffle, max_segments: int) -> None:
    epochs = Plan(view, RECIPE, shuffle=shuffle, max_segments=max_segments)
    for epoch in range(3):
        assert sorted(epochs.order(epoch)) == list(range(300))


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("max_segments", [10, 65_536])
def test_epochs_and_seeds_have_orders_of_their_own(shuffle: plan.Shuffle, max_segments: int) -> None:
    plans = [Plan(_records(300), RECIPE, seed, shuffle, max_segments=max_segments) for seed in (0, 1)]
    orders = {tuple(p.order(epoch)) for p in plans for epoch in range(5)}
    assert len(orders) == 10
    assert tuple(range(300)) not in orders


def test_the_same_seed_and_epoch_are_the_same_again() -> None:
    first, again = (Plan(_records(300), RECIPE, seed=5) for _ in range(2))
    first.order(0)  # asked before, or not
    np.testing.assert_array_equal(first.order(1), again.order(1))
    places = np.arange(300)
    np.testing.assert_array_equal(first.tickets(1, places), again.tickets(1, places[::-1])[::-1])


def test_every_place_is_as_likely_for_every_record() -> None:
    epochs = Plan(_records(5), RECIPE)
    counts = np.zeros((5, 5))
    for epoch in range(2000):
        counts[epochs.order(epoch), np.arange(5)] += 1
    np.testing.assert_allclose(counts, 400, atol=4 * np.sqrt(400 * 0.8))


def test_without_shuffle_the_order_is_the_views() -> None:
    view = _records(300, shards=3).select(np.random.default_rng(0).permutation(300))
    assert Plan(view, RECIPE, shuffle=False).order(9).tolist() == list(range(300))


def _ids(epochs: Plan, epoch: int) -> list[int]:
    ids: list[int] = epochs.records.ids[epochs.order(epoch)].tolist()
    return ids


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_excluding_records_changes_nothing_for_the_others(shuffle: plan.Shuffle) -> None:
    view, gone = _records(300, shards=3), set(range(0, 300, 7))
    whole, part = (Plan(v, RECIPE, seed=4, shuffle=shuffle) for v in (view, view.exclude(gone)))
    order = _ids(whole, 2)
    assert _ids(part, 2) == [number for number in order if number not in gone]
    stays = np.flatnonzero(~np.isin(np.arange(300), list(gone)))
    np.testing.assert_array_equal(part.tickets(2, np.arange(len(stays))), whole.tickets(2, stays))


def test_the_order_of_a_view_changes_nothing_for_a_shuffled_epoch() -> None:
    view = _records(300, shards=3)
    turned = view.select(np.random.default_rng(0).permutation(300))
    assert _ids(Plan(view, RECIPE), 1) == _ids(Plan(turned, RECIPE), 1)


def test_an_op_added_behind_changes_nobodys_tickets() -> None:
    more = dataclasses.replace(RECIPE, ops=(*RECIPE.ops, dp.RandomFlip()))
    first, second = (Plan(_records(50), recipe).tickets(0, np.arange(50)) for recipe in (RECIPE, more))
    np.testing.assert_array_equal(second[:, :-1], first)
    assert 10 < second[:, -1].sum() < 40


def test_tickets_see_images_as_they_are_turned() -> None:
    view = _records(3)
    view.table["orientation"] = [1, 6, 8]
    recipe = dp.Recipe((dp.CenterCrop((90, 110)),), exif=True)
    tickets = Plan(view, recipe).tickets(0, np.arange(3))
    assert tickets[:, 2:].tolist() == [[5, 5, 90, 110], [19, 0, 81, 100], [19, 0, 81, 100]]  # 100 · 90 // 110 rows


@pytest.mark.parametrize("replicas", [1, 2, 3, 8, 300, 301])
@pytest.mark.parametrize("shuffle", [*SHUFFLES, False])
@pytest.mark.parametrize("max_segments", [10, 65_536])
def test_strides_deal_the_whole_epoch(replicas: int, shuffle: plan.Shuffle, max_segments: int) -> None:
    settings: dict[str, Any] = {"shuffle": shuffle, "max_segments": max_segments, "replicas": replicas}
    plans = [Plan(_records(300, shards=3), RECIPE, rank=rank, **settings) for rank in range(replicas)]
    orders = [p.order(4).tolist() for p in plans]
    assert [len(order) for order in orders] == [len(p) for p in plans]
    whole = Plan(_records(300, shards=3), RECIPE, shuffle=shuffle, max_segments=max_segments).order(4).tolist()
    dealt: list[int | None] = [None] * 300
    for rank, order in enumerate(orders):
        dealt[rank::replicas] = order
    assert dealt == whole


def test_blocks_stay_together() -> None:
    view = _records(300, shards=3)
    epochs = Plan(view, RECIPE, max_segments=20)
    assert epochs.segments is not None
    blocks = [segment.tolist() for segment in epochs.segments]
    assert {len(block) for block in blocks} == {15, 10}  # ceil(300 / 20), and what is left of a shard's 100
    assert all(np.ptp(view.table["shard"][block]) == 0 for block in blocks)
    starts = {block[0]: block for block in blocks}
    order = epochs.order(0).tolist()
    while order:
        block = starts.pop(order[0])
        assert order[: len(block)] == block
        del order[: len(block)]
    assert starts == {}


@pytest.mark.parametrize("count", [65_536, 65_537])
def test_true_is_a_permutation_of_records_up_to_65536(count: int) -> None:
    epochs = Plan(_records(count), RECIPE)
    assert (epochs.segments is None) == (count == 65_536)
    neighbours = np.count_nonzero(np.diff(epochs.order(0)) == 1)
    assert (neighbours > count / 3) == (count == 65_537)


def test_exact_ignores_max_segments() -> None:
    few, many = (Plan(_records(300), RECIPE, shuffle="exact", max_segments=n) for n in (10, 1000))
    assert few.segments is None
    assert few.order(1).tolist() == many.order(1).tolist() == Plan(_records(300), RECIPE).order(1).tolist()


IMAGENET, CLASSES, BATCH = 1_281_167, 1000, 256


@pytest.fixture(scope="module")
def sorted_classes() -> Records:
    """As many records as ImageNet has, one class after the other."""
    return _records(IMAGENET, np.arange(IMAGENET) * CLASSES // IMAGENET, shards=1024)


def _distinct(labels: Ints, order: Ints) -> float:
    batches = [order[at : at + BATCH] for at in range(0, 50 * BATCH, BATCH)]
    return float(np.mean([len(np.unique(labels[batch])) for batch in batches]))


def test_blocks_of_sorted_classes_mix_badly_and_are_told(sorted_classes: Records) -> None:
    labels = sorted_classes.labels
    blocks, exact = (Plan(sorted_classes, RECIPE, shuffle=shuffle) for shuffle in SHUFFLES)
    assert len(blocks.segments or ()) <= plan.MAX_SEGMENTS
    permutation = _distinct(labels, np.random.default_rng(0).permutation(IMAGENET))
    assert permutation == pytest.approx(CLASSES * (1 - (1 - 1 / CLASSES) ** BATCH), rel=0.01)  # 226
    assert _distinct(labels, exact.order(0)) == pytest.approx(permutation, rel=0.01)
    assert _distinct(labels, blocks.order(0)) < 16  # 256 records are some 13 blocks of 20
    assert plan.mixing(exact, BATCH) is None
    assert plan.mixing(blocks, BATCH) == (
        "shuffle=True permutes blocks of 20 neighbouring records, and neighbours have like labels: "
        "a batch of 256 holds about 14 classes, where a permutation's holds 226. "
        'Use shuffle="exact".'
    )


def test_blocks_of_mixed_classes_mix_well(sorted_classes: Records) -> None:
    """As TFDS writes them, which shuffles before it writes."""
    table = sorted_classes.table.copy()
    table["label"] = np.random.default_rng(0).permutation(table["label"])
    mixed = Plan(dataclasses.replace(sorted_classes, table=table), RECIPE)
    assert mixed.segments is not None
    assert _distinct(mixed.records.labels, mixed.order(0)) > 220
    assert plan.mixing(mixed, BATCH) is None


def test_small_data_sets_need_no_advice() -> None:
    assert plan.mixing(Plan(_records(300), RECIPE), 16) is None
    assert plan.mixing(Plan(_records(300), RECIPE, shuffle=False), 16) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, r"`seed` must be an int from 0 to 2\*\*64 - 1\. Received: seed=-1"),
        ({"seed": 2**64}, "Received: seed=18446744073709551616"),
        ({"seed": 1.5}, "`seed` must be an int"),
        ({"seed": None}, "`seed` must be an int"),
        ({"shuffle": "full"}, "`shuffle` must be True, False or \"exact\". Received: shuffle='full'"),
        ({"shuffle": None}, "`shuffle` must be"),
        ({"rank": 2, "replicas": 2}, r"`shard` must be \(rank, replicas\) with 0 <= rank.* shard=\(2, 2\)"),
        ({"rank": -1, "replicas": 2}, r"shard=\(-1, 2\)"),
        ({"replicas": 0}, r"shard=\(0, 0\)"),
    ],
)
def test_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(_records(3), RECIPE, **settings)

"""Order and draws of an epoch: what a seed means, today and next year, and who may change it."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_pipe as dp
from dali_pipe import Plan, Records, Schema, plan
from dali_pipe.geometry import Floats, Ints
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


def _floats(lanes: Ints) -> Floats:
    """What lanes of float64 bits hold."""
    return np.ascontiguousarray(lanes).view(np.float64)


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
    #   keep, label | size | window | flips | window
    assert tickets.tolist() == [
        [1, 3, 80, 96, 13, 30, 64, 64, 0, 0, 10, 8, 38, 34],
        [1, 0, 80, 96, 3, 17, 64, 64, 1, 0, 2, 3, 58, 58],
        [1, 9, 80, 96, 4, 2, 64, 64, 0, 0, 1, 11, 57, 43],
    ]
    assert tickets.dtype == np.int64


ONE_HOT = dp.OneHot(10)
CUT = dp.Recipe(
    (dp.Pad(2), dp.RandomCrop(64), dp.RandomFlip(0.5, 0.5), dp.RandomErasing(), dp.RandomBrightness()),
    label=ONE_HOT,
    mix=dp.CutMix(),
)
BLEND = dp.Recipe(
    (dp.CenterCrop(64), dp.RandomRotation(), dp.RandomContrast(), dp.RandomSaturation(), dp.RandomHue()),
    label=ONE_HOT,
    mix=dp.MixUp(),
)


def test_tickets_of_a_cutmix_of_seed_7_epoch_3() -> None:
    epochs = Plan(_records(10), CUT, seed=7)
    tickets = epochs.tickets(3, epochs.order(3)[:5], 2)
    #   keep, label | size | window | flips | erased | brightness | partner | pasted
    assert tickets[:, :-1].tolist() == [
        [1, 8, 104, 124, 21, 33, 64, 64, 0, 0, 0, 0, 0, 0, 16, 1, 36, 20, 28, 44],
        [1, 4, 104, 124, 1, 26, 64, 64, 1, 0, 12, 9, 23, 39, 47, 0, 36, 20, 28, 44],
        [1, 0, 104, 124, 8, 32, 64, 64, 1, 1, 0, 0, 0, 0, 13, 1, 26, 1, 38, 58],
        [1, 9, 104, 124, 11, 3, 64, 64, 0, 1, 0, 0, 0, 0, 28, 0, 26, 1, 38, 58],
        [1, 3, 104, 124, 31, 56, 64, 64, 0, 0, 9, 6, 30, 27, -47, 0, 21, 0, 42, 29],
    ]
    left = [1 - area / 64**2 for area in (28 * 44, 28 * 44, 38 * 58, 38 * 58, 42 * 29)]
    assert _floats(tickets[:, -1]).tolist() == left


def test_tickets_of_a_mixup_of_seed_7_epoch_3() -> None:
    epochs = Plan(_records(10), BLEND, seed=7)
    tickets = epochs.tickets(3, epochs.order(3)[:5], 2)
    assert tickets[:, :6].tolist() == [[1, label, 18, 28, 64, 64] for label in (8, 4, 0, 9, 3)]
    rotation, contrast, saturation, hue, ratio = (
        _floats(tickets[:, lanes]) for lanes in (slice(6, 12), 12, slice(13, 22), slice(22, 31), -1)
    )
    golden = {  # the last bits of a sine are its library's
        "angle": [0.2814149857, -9.0850782394, -5.8306527138, -4.4914507866, 5.4263806343],
        "contrast": [1.1739354610, 0.8489894152, 0.9436880350, 1.0780375719, 1.1637979269],
        "saturation, red of red": [1.0353123796, 1.1055103186, 1.0845051243, 0.9351101049, 1.1172784433],
        "hue, red of red": [1.0129357570, 1.0190666459, 1.0109121476, 1.0186082854, 0.9232541210],
        "hue, red of green": [0.0343179314, 0.1172836441, 0.0271687659, 0.0659691955, -0.0694915441],
        "ratio": [0.0808848077, 0.0808848077, 0.0009819256, 0.0009819256, 0.6642569663],
    }
    angle = np.rad2deg(np.arctan2(rotation[:, 3], rotation[:, 0]))
    found = [angle, contrast, saturation[:, 0], hue[:, 0], hue[:, 1], ratio]
    np.testing.assert_allclose(found, list(golden.values()), rtol=0, atol=1e-9, err_msg=", ".join(golden))
    assert tickets[:, -2].tolist() == [1, 0, 1, 0, 0]


@pytest.mark.parametrize("width", [1, 3])
def test_a_mix_draws_from_a_stream_of_its_own(width: int) -> None:
    """At the batch's place in the epoch."""
    found = plan.words(7, 3, plan._MIX_STREAM, np.arange(4), width).tolist()
    assert found == [_philox((7, 3), (batch + 1, 0, 0, 2**32))[:width] for batch in range(4)]


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
    np.testing.assert_array_equal(second[:, :-2], first)
    assert 10 < second[:, -2].sum() < 40


MIXED = [CUT, BLEND]


def _mix_lanes(recipe: dp.Recipe, seed: int = 0, epoch: int = 0, batch_size: int = 8, view: Any = None) -> Ints:
    """Of an epoch, in order."""
    epochs = Plan(_records(50) if view is None else view, recipe, seed)
    return epochs.tickets(epoch, epochs.order(epoch), batch_size)[:, plan.FIRST_PARAMETER + recipe.lanes :]


@pytest.mark.parametrize("recipe", MIXED)
def test_a_mix_depends_on_seed_epoch_and_the_place_of_the_batch_alone(recipe: dp.Recipe) -> None:
    lanes = _mix_lanes(recipe, 4, 2)
    others = _records(400, labels=np.zeros(400)).select(np.arange(350, 400))
    np.testing.assert_array_equal(_mix_lanes(recipe, 4, 2, view=others), lanes)
    ops = (dp.RandomHue(), dp.RandomCrop(64))
    np.testing.assert_array_equal(_mix_lanes(dataclasses.replace(recipe, ops=ops), 4, 2), lanes)
    assert len(np.unique(lanes[:, 1:], axis=0)) == 7  # batches
    for other in (_mix_lanes(recipe, 5, 2), _mix_lanes(recipe, 4, 3)):
        assert other[:, 0].tolist() == lanes[:, 0].tolist()  # partners
        assert not np.isin(other[:, -1], lanes[:, -1]).any()


@pytest.mark.parametrize("recipe", MIXED)
def test_batches_of_another_size_have_the_same_mixes(recipe: dp.Recipe) -> None:
    small, large = (_mix_lanes(recipe, batch_size=size) for size in (8, 10))
    np.testing.assert_array_equal(small[::8, 1:][:5], large[::10, 1:])


@pytest.mark.parametrize("recipe", MIXED)
def test_a_mix_changes_nobodys_tickets(recipe: dp.Recipe) -> None:
    alone = Plan(_records(50), dataclasses.replace(recipe, mix=None)).tickets(1, np.arange(50))
    mixed = Plan(_records(50), recipe).tickets(1, np.arange(50), 8)
    np.testing.assert_array_equal(mixed[:, : alone.shape[1]], alone)


@pytest.mark.parametrize("recipe", [RECIPE, *MIXED, dp.crop_eval(64)])
def test_a_plan_knows_the_width_of_its_tickets(recipe: dp.Recipe) -> None:
    epochs = Plan(_records(10), recipe)
    for count in (0, 1, 10):
        assert epochs.tickets(0, np.arange(count), 4).shape == (count, epochs.lanes)


def test_without_a_mix_the_batch_size_changes_nothing() -> None:
    epochs, places = Plan(_records(10), RECIPE), np.arange(10)
    np.testing.assert_array_equal(epochs.tickets(0, places, 3), epochs.tickets(0, places))


def test_replicas_mix_within_their_own_batches() -> None:
    plans = [Plan(_records(21), CUT, rank=rank, replicas=2) for rank in range(2)]
    tickets = [p.tickets(0, p.order(0), 4) for p in plans]
    partners = [t[:, plan.FIRST_PARAMETER + CUT.lanes].tolist() for t in tickets]
    assert partners == [[3, 0, 1, 2] * 2 + [2, 0, 1], [3, 0, 1, 2] * 2 + [1, 0]]


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

"""An epoch dealt to many replicas: balance, and how many index files it takes."""

import os
from pathlib import Path
from typing import Any

import pytest

import dali_pipe as dp
from benchmarks.distribute_plan import SHUFFLES, Case, deal, view
from dali_pipe import index_files
from dali_pipe.index_files import IndexFiles
from dali_pipe.plan import Plan

RECORDS, SEGMENTS = 2000, 100  # blocks of 20


@pytest.mark.parametrize("replicas", [3, 8])
@pytest.mark.parametrize("shuffle", [*SHUFFLES, False])
def test_strides_are_the_epoch(replicas: int, shuffle: Any) -> None:
    records = view(RECORDS, 16)
    orders = [
        Plan(records, dp.crop_train(8), 3, shuffle, rank, replicas, max_segments=SEGMENTS).order(1)
        for rank in range(replicas)
    ]
    assert sorted(place for order in orders for place in order) == list(range(RECORDS))
    assert max(map(len, orders)) - min(map(len, orders)) <= 1


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_the_simulation_in_small(shuffle: Any) -> None:
    dealt = deal(Case(records=RECORDS, shards=16, replicas=8, shuffle=shuffle, share=8))
    assert dealt.apart <= 1 and dealt.left_after == 0
    assert 0 < dealt.files <= RECORDS // 8 and dealt.plan_seconds > 0 and dealt.megabytes > 0


class TestIndexFilesOfAStride:
    def plan(self, rank: int, replicas: int) -> Plan:
        return Plan(view(RECORDS, 16), dp.crop_train(8), 3, True, rank, replicas, max_segments=SEGMENTS)

    @pytest.mark.parametrize("replicas", [2, 8, 30])
    def test_a_block_takes_one(self, replicas: int) -> None:
        plan = self.plan(1, replicas)
        index, order = IndexFiles(plan.records, replicas), plan.order(0)
        shards, files = index.write(order)
        lines = [
            (shard, *map(int, line.split()))
            for shard, file in zip(shards, files, strict=True)
            for line in Path(file).read_text().splitlines()
        ]
        rows = plan.records.table[order]
        expected = [(str(plan.records.shards[r["shard"]]), int(r["offset"]), int(r["length"])) for r in rows]
        assert lines == expected
        assert plan.segments is not None
        assert len(files) <= min(len(plan.segments), len(order))

    def test_those_of_past_epochs_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(index_files, "MOST_FILES", 400)
        plan = self.plan(1, 8)
        index = IndexFiles(plan.records, 8)
        before, ever = list[str](), set[str]()
        for epoch in range(20):
            files = index.write(plan.order(epoch))[1]
            assert index.write(plan.order(epoch))[1] == files
            assert all(os.path.exists(file) for file in [*files, *before])
            assert len(os.listdir(index.folder)) <= 400 + 1  # the lock
            before, ever = files, ever.union(files)
        assert len(ever) > 400, "there was nothing to remove"
        folder = Path(index.folder)
        del index
        assert not folder.exists()

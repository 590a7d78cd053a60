"""Every bad record is found, named, and remembered."""

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_pipe import RecordError, Records, Schema, from_files
from tests import odd_images, support
from tf_bridge import choice, cli, decoders, verdict, verify
from tf_bridge.verify import Finding, Report

GOOD = [support.photograph(k, 40, 50) for k in range(6)]
VOTERS = {"TensorFlow", "DALI"}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DALI_TF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The images that are decoded."""
    found: list[bytes] = []
    ask = decoders.Panel.refusal

    def counted(self: decoders.Panel, image: bytes) -> str | None:
        found.append(image)
        return ask(self, image)

    monkeypatch.setattr(decoders.Panel, "refusal", counted)
    return found


@pytest.fixture
def no_dali(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(choice, "dali_fault", lambda: "no such module")
    return monkeypatch


def _claiming(height: int, width: int) -> bytes:
    """A JPEG whose header claims another size than it has."""
    at = odd_images.PLAIN.find(b"\xff\xc0") + 5
    return odd_images.PLAIN[:at] + struct.pack(">HH", height, width) + odd_images.PLAIN[at + 4 :]


def _flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def _look(records: Records, **options: Any) -> Report:
    return verify.verify(records, 2, **options)


def _view(paths: Sequence[Path], **schema: Any) -> Records:
    return from_files(paths, Schema(**schema), "skip")


def _mixed(folder: Path, *odd: bytes) -> Path:
    """A shard with odd payloads between good ones."""
    good = [support.example({"image": image, "label": 1}) for image in GOOD[:3]]
    return support.write_shard(folder / "mixed.tfrecord", [*good, *odd, *good])


def test_a_good_view_has_no_findings(photographs: list[Path]) -> None:
    report = _look(from_files(photographs))
    assert (report.records, report.verified, report.findings) == (50, 50, ())
    assert {voter.split()[0] for voter in report.voters} == VOTERS
    assert report.seconds > 0


def test_every_kind_of_fault_is_found_and_named(tmp_path: Path) -> None:
    image, broken = GOOD[0], odd_images.IMAGES["truncated_half"]
    payloads = [
        support.example({"image": image}),  # no label
        support.example({"image": image, "label": [1, 2]}),
        b"\xff" * 40,
        support.example({"image": odd_images.IMAGES["garbage"], "label": 1}),
        support.example({"image": _claiming(60_000, 60_000), "label": 1}),
        support.example({"image": broken, "label": 1}),
        support.example({"image": odd_images.IMAGES["gif"], "label": 1}),
        support.example({"image": image, "label": 1}),  # damaged below
    ]
    path = _mixed(tmp_path, *payloads)
    offsets = (
        np.cumsum([0, *(len(p) + 16 for p in payloads)])
        + 3 * 16
        + sum(len(support.example({"image": i, "label": 1})) for i in GOOD[:3])
    )
    _flip(path, int(offsets[7]) + 12 + len(image) // 2)
    report = _look(_view([path]))
    assert (report.records, report.verified) == (14, 9)
    assert [f.shard for f in report.findings] == [path] * 8
    assert [f.record for f in report.findings] == list(range(3, 11))
    assert [f.offset for f in report.findings] == offsets[:8].tolist()
    assert [f.cause for f in report.findings] == ["header"] * 5 + ["decode"] * 2 + ["checksum"]
    for finding, words in zip(
        report.findings,
        [
            "no feature 'label'",
            "must hold one label; it holds 2",
            "a number runs past its message",
            "is not an image",
            "claims 60000x60000 pixels, more than `max_pixels`=178956970",
            "cannot be decoded by TensorFlow: jpeg::Uncompress failed. Invalid JPEG data or crop window.; "
            "DALI: the image is damaged",
            "cannot be decoded by DALI: this kind of image is not supported",
            "the record's content does not match its checksum",
        ],
        strict=True,
    ):
        assert words in finding.reason
    assert str(report.findings[0]).startswith(f"{path}, record 3 at byte {offsets[0]}: no feature 'label'")


def test_a_claimed_size_is_refused_before_anything_is_decoded(tmp_path: Path, decoded: list[bytes]) -> None:
    paths = support.write_shards(tmp_path, [_claiming(65_500, 65_500)] * 2, shards=1)
    with pytest.raises(RecordError, match=r"claims 65500x65500 pixels, more than `max_pixels`=178956970"):
        from_files(paths)
    assert [f.cause for f in _look(_view(paths)).findings] == ["header"] * 2
    assert decoded == []


def test_the_largest_size_is_a_setting(tmp_path: Path) -> None:
    paths = support.write_shards(tmp_path, [GOOD[0], odd_images.PLAIN], shards=1)  # 2,000 and 3,072 pixels
    assert len(from_files(paths, Schema(max_pixels=3072))) == 2
    view = _view(paths, max_pixels=3071)
    assert view.ids.tolist() == [0]
    assert [(f.record, f.cause) for f in _look(view).findings] == [(1, "header")]
    assert len(from_files(paths)) == 2  # what was kept of the scan holds for any limit
    with pytest.raises(ValueError, match="`max_pixels` must be positive"):
        Schema(max_pixels=0)


def test_bad_images_by_the_dozen_are_found_one_by_one(tmp_path: Path) -> None:
    """DALI gets one at a time: of a batch it would say no more than that one has failed."""
    bad = [k for k in range(200) if k % 3 == 0]
    images = [odd_images.IMAGES["ff00_between_segments"] if k in bad else GOOD[k % 6] for k in range(200)]
    report = _look(_view(support.write_shards(tmp_path, images, shards=1)))
    assert [f.record for f in report.findings] == bad


@pytest.mark.parametrize("place", [8, 11])
def test_a_damaged_length_is_a_broken_shard(tmp_path: Path, place: int) -> None:
    (path,) = support.write_shards(tmp_path, GOOD, shards=1)
    _flip(path, place)
    with pytest.raises(RecordError, match=r"length does not match its checksum.*`on_error` leaves out single records"):
        _view([path])


def test_the_checksum_of_a_length_is_checked_again_with_the_record(tmp_path: Path) -> None:
    (path,) = support.write_shards(tmp_path, GOOD, shards=1)
    view = from_files(path)
    _flip(path, int(view.table["offset"][2]) + 9)
    (finding,) = _look(replace(view, stamps=())).findings
    assert (finding.record, finding.cause) == (2, "checksum")
    assert "the record's length does not match its checksum" in finding.reason


class TestRemembering:
    def test_a_second_look_decodes_nothing(self, tmp_path: Path, decoded: list[bytes]) -> None:
        view = _view(support.write_shards(tmp_path, [*GOOD, odd_images.IMAGES["gif"]]))
        first = _look(view)
        assert (first.verified, len(decoded)) == (7, 7)
        again = _look(view)
        assert (again.verified, len(decoded)) == (0, 7)
        assert again.findings == first.findings != ()
        assert set(again.voters) == set(first.voters)
        assert _look(view, fresh=True).findings == first.findings
        assert len(decoded) == 14

    def test_of_a_larger_view_only_the_rest_is_decoded(self, tmp_path: Path, decoded: list[bytes]) -> None:
        images = [*GOOD[:3], odd_images.IMAGES["gif"], *GOOD[3:]]
        view = _view(support.write_shards(tmp_path, images, shards=1))
        assert _look(view.select([5, 2, 2])).verified == 2
        assert _look(view.take(4)).verified == 3
        report = _look(view)
        assert report.verified == 2
        assert [f.record for f in report.findings] == [3]
        assert sorted(decoded) == sorted(images)

    def test_only_a_changed_shard_is_verified_again(self, tmp_path: Path) -> None:
        paths = support.write_shards(tmp_path, GOOD)
        assert _look(_view(paths)).verified == 6
        support.write_shard(paths[1], [support.example({"image": odd_images.IMAGES["gif"], "label": 1})] * 2)
        report = _look(_view(paths))
        assert report.verified == 2
        assert [f.record for f in report.findings] == [2, 3]

    def test_a_shard_that_changes_after_its_scan_is_an_error(self, tmp_path: Path) -> None:
        paths = support.write_shards(tmp_path, GOOD)
        view = _view(paths)
        os.utime(paths[2], ns=(0, 10**9))
        with pytest.raises(RecordError, match=f"{paths[2].name}: the shard has changed since it was scanned"):
            _look(view)

    def test_another_image_key_has_verdicts_of_its_own(self, tmp_path: Path) -> None:
        features: dict[str, support.Value] = {"image": GOOD[0], "other": odd_images.IMAGES["gif"], "label": 1}
        path = support.write_shard(tmp_path / "a.tfrecord", [support.example(features)])
        assert _look(_view([path])).findings == ()
        assert len(_look(_view([path], image_key="other")).findings) == 1
        assert _look(_view([path])).findings == ()

    def test_shards_that_are_done_stay_done_when_it_is_broken_off(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[bytes]
    ) -> None:
        view = _view(support.write_shards(tmp_path, GOOD))
        store, stored = verdict.store, []

        def interrupted(*arguments: Any) -> None:
            store(*arguments)
            stored.append(arguments)
            if len(stored) == 2:
                raise KeyboardInterrupt

        monkeypatch.setattr(verdict, "store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _look(view)
        monkeypatch.setattr(verdict, "store", store)
        assert _look(view).verified == 2

    def test_a_cache_that_cannot_be_written_only_logs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("DALI_TF_CACHE", str(tmp_path / "file" / "cache"))
        assert len(_look(_view(support.write_shards(tmp_path, [odd_images.IMAGES["gif"]], shards=1))).findings) == 1
        assert "is not kept" in caplog.text


class TestWithoutDALI:
    def test_what_it_would_refuse_is_found_when_it_is_there(
        self, tmp_path: Path, no_dali: pytest.MonkeyPatch, decoded: list[bytes]
    ) -> None:
        view = _view(support.write_shards(tmp_path, [*GOOD, odd_images.IMAGES["gif"]], shards=1))
        report = _look(view)
        assert (report.findings, len(report.voters)) == ((), 1)
        assert _look(view).verified == 0
        no_dali.undo()
        no_dali.setenv("DALI_TF_CACHE", str(tmp_path / "cache"))
        report = _look(view)
        assert ([f.record for f in report.findings], report.verified) == ([6], 7)

    def test_a_verdict_that_it_had_a_part_in_holds(self, tmp_path: Path, no_dali: pytest.MonkeyPatch) -> None:
        view = _view(support.write_shards(tmp_path, [*GOOD, odd_images.IMAGES["gif"]], shards=1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choice, "dali_fault", lambda: None)
            _look(view.skip(2))
        assert [f.record for f in _look(view.skip(3)).findings] == [6]
        assert {voter.split()[0] for voter in _look(view.skip(3)).voters} == VOTERS
        assert _look(view).verified == 7  # of records it has not seen there are none by both: all anew
        assert _look(view).findings == ()

    def test_another_version_asks_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        view = _view(support.write_shards(tmp_path, GOOD))
        _look(view)
        there = decoders.available()
        monkeypatch.setattr(decoders, "available", lambda: {**there, "DALI": "9.9.9"})
        report = _look(view)
        assert report.verified == 6
        assert "DALI 9.9.9" in report.voters


def _run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    code = cli.main([str(argument) for argument in arguments])
    told = capsys.readouterr()
    assert "Verifying" not in told.err  # no bar where there is no terminal
    return code, told.out


class TestCommand:
    def test_a_good_data_set_is_exit_code_0(self, tfds_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, told = _run(capsys, "verify", tfds_folder)
        assert code == 0
        assert "240, of which 240 decoded now (" in told and "images/s" in told
        assert "Bad:     0 (0.00%)" in told
        assert f"TensorFlow {decoders.available()['TensorFlow']}" in told
        code, told = _run(capsys, "verify", tfds_folder, "--split", "train[:10]")
        assert code == 0
        assert "10, of which 0 decoded now\n" in told

    def test_findings_are_a_table_and_exit_code_1(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        paths = support.write_shards(tmp_path, [*GOOD, odd_images.IMAGES["gif"], b"", *GOOD], shards=2)
        code, told = _run(capsys, "verify", f"{tmp_path}/*.tfrecord*")
        assert code == 1
        assert "Bad:     2 (14.29%)" in told
        head, first, second = told.strip().splitlines()[-3:]
        assert head.split() == ["shard", "record", "offset", "reason"]
        assert first.split()[:2] == [paths[0].name, "6"] and "not supported" in first
        assert second.split()[:3] == [paths[1].name, "7", "0"] and "must hold one image" in second

    def test_a_label_that_cannot_be_is_listed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (path,) = support.write_shards(tmp_path, GOOD, [1, 2, 3, -5, 1, 2], shards=1)
        assert cli.main(["verify", str(path), "--label-offset", "1"]) == 1
        told = capsys.readouterr()
        assert told.err == ""  # not that it is left out: it is looked at
        assert "Bad:     1 (16.67%)" in told.out
        row = told.out.strip().splitlines()[-1]
        assert row.split()[:2] == [path.name, "3"] and "label -5 is below the first class's" in row

    def test_what_decoders_print_of_bad_images_is_not_seen(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        images = [*GOOD, odd_images.IMAGES["ff00_between_segments"], odd_images.IMAGES["truncated_half"]]
        (path,) = support.write_shards(tmp_path, images, shards=1)
        _look(_view([path]))
        assert "[ERROR]" in capfd.readouterr().err  # DALI's, from C++
        assert cli.main(["verify", str(path), "--fresh"]) == 1
        told = capfd.readouterr()
        assert "Bad:     2 (25.00%)" in told.out and told.err == ""

    def test_json_says_the_same(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (path,) = support.write_shards(tmp_path, [*GOOD, odd_images.IMAGES["gif"]], shards=1)
        code, told = _run(capsys, "verify", path, "--json", "--max-pixels", "2500")
        report = json.loads(told)
        assert (code, report["ok"], report["records"], report["bad"]) == (1, False, 7, 1)
        assert report["findings"] == [
            {
                "shard": str(path),
                "record": 6,
                "offset": from_files(path).table["offset"][6],
                "cause": "header",
                "reason": report["findings"][0]["reason"],
            }
        ]
        assert "claims 48x64 pixels" in report["findings"][0]["reason"]
        code, told = _run(capsys, "verify", path, "--json", "--fresh")
        report = json.loads(told)
        assert (code, report["verified"], report["findings"][0]["cause"]) == (1, 7, "decode")
        assert {voter.split()[0] for voter in report["decoders"]} == VOTERS
        support.write_shards(tmp_path, GOOD, shards=1)
        code, told = _run(capsys, "verify", path, "--json")
        assert (code, json.loads(told)["ok"], json.loads(told)["findings"]) == (0, True, [])

    @pytest.mark.parametrize("options", [[], ["--json"]])
    def test_a_broken_shard_is_a_finding(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
    ) -> None:
        paths = support.write_shards(tmp_path, GOOD)
        os.truncate(paths[1], os.path.getsize(paths[1]) - 1)
        code, told = _run(capsys, "verify", f"{tmp_path}/*.tfrecord*", *options)
        assert code == 1
        assert paths[1].name in told and "cut short" in told
        if options:
            assert json.loads(told)["findings"][0]["cause"] == "shard"

    def test_what_is_not_there_is_exit_code_2(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["verify", "no/such/thing"]) == 2
        assert "`data` must be" in capsys.readouterr().err


def test_a_finding_reads_as_a_place_and_a_reason() -> None:
    assert str(Finding(Path("/a"), 3, 99, "decode", "is bad")) == "/a, record 3 at byte 99: is bad"

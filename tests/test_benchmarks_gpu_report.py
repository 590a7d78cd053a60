"""What `gpu_check` prints: what it measures on, a line a case, and one for each reason to skip."""

import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_check
from benchmarks.gpu_cases import Check, Setting


def test_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_check, "dali_gpu_count", lambda: 0)
    report = gpu_check.Report(tmp_path / "check.json", Setting(data="d", batch_size=8))
    report.begin()
    report.add(
        Check(kind="speed", name="cpu"), {"status": "ok", "images_per_second": 12_345.6, "cpu_ms_per_image": 0.5}
    )
    for name in ("a", "b"):
        report.add(Check(kind="parity", name=name), {"status": "skipped", "reason": "needs a GPU"})
    report.conclude()
    told = capsys.readouterr().out.splitlines()
    assert f"{report.machine['cores']} cores" in told[0]
    assert told[1].startswith("There is no GPU that DALI can use")
    assert told[2] == "Crops of 224, batches of 8, 4 s for each speed."
    assert told[4].split() == ["what", "case", "status", "figures"]
    assert told[5].split(maxsplit=3) == ["speed", "cpu", "ok", "images per second 12,346, cpu ms per image 0.5"]
    assert told[6] == "2 of 3 cases skipped: needs a GPU"
    assert told[8] == "Goals, each found (wanted):"
    assert len(told) == 9 + 4


@pytest.mark.parametrize(("waits", "status"), [(True, "skipped"), (False, "failed")])
def test_a_case_that_time_cuts_has_not_failed(
    waits: bool, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(check: Check, setting: Setting, limit: float) -> dict[str, Any]:
        time.sleep(limit if waits else 0)
        return {"status": "failed", "reason": "still running"}

    monkeypatch.setattr(gpu_check, "in_process", cut)
    report = gpu_check.Report(tmp_path / "check.json", Setting(data="d", seconds=0.01))
    gpu_check.run(report, [Check(kind="speed", name="cpu", device="cpu")], seconds=0.2 if waits else 60)
    assert report.cases[0]["status"] == status

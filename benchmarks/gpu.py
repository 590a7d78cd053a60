"""GPU memory and utilisation while a case runs, as `nvidia-smi` sees them; nothing where there is none."""

import shutil
import subprocess
import threading
import time
from typing import Any

_QUERY = ["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits", "--loop-ms=200"]


class Watch:
    """Samples the first GPU from outside the process that is measured, so that watching costs that process nothing."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float, float]] = []  # time.time(), percent, MB
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> "Watch":
        if shutil.which("nvidia-smi"):
            command = ["nvidia-smi", "--id=0", *_QUERY]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
            self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._reader is not None:
            self._process.kill()
            self._reader.join()  # it closes the pipe
            self._process.wait()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                try:
                    percent, megabytes = map(float, line.split(","))
                except ValueError:  # "[N/A]", or a line cut by the end
                    continue
                self.samples.append((time.time(), percent, megabytes))

    def within(self, start: float, end: float) -> dict[str, Any]:
        """Mean utilisation and most memory between two times; empty without samples."""
        inside = [(percent, megabytes) for at, percent, megabytes in self.samples if start <= at <= end]
        if not inside:
            return {}
        percents, megabytes = zip(*inside, strict=True)
        return {"gpu_percent": sum(percents) / len(percents), "gpu_memory_mb": max(megabytes)}

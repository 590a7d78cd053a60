"""What `gpu_check` asks of a machine: its cases, and what each of them needs."""

import importlib.util
from dataclasses import dataclass
from typing import Literal

import dali_pipe as dp
from dali_pipe.device import dali_gpu_count

Decoder = Literal["whole", "region", "on the CPU"]
HARDWARE_LOADS, THREADS = (0.0, 0.25, 0.5, 0.75, 1.0), (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One case.

    Attributes:
        kind: what is asked: "parity", "speed", "torchvision" or "fit".
        name: for people.
        needs: what must be there: "gpu", "tensorflow", "torchvision".
        recipe: a name in `recipes`.
        dtype: of the batches.
        device: that DALI runs on.
        decoder: on the GPU: "whole" is the product's; "region" decodes only the crop's window there; "on the CPU"
            leaves the decoder out of a comparison.
        hw_decoder_load: share of the images that go to the hardware decoder; None is DALI's choice.
        threads: of DALI, on the CPU; None is one for each core, 16 at most.
    """

    kind: Literal["parity", "speed", "torchvision", "fit"]
    name: str
    needs: tuple[str, ...] = ()
    recipe: str = "crop"
    dtype: Literal["uint8", "float16", "float32"] = "uint8"
    device: Literal["cpu", "gpu"] = "gpu"
    decoder: Decoder = "whole"
    hw_decoder_load: float | None = None
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cases share: the records, the crop's side, records a batch, and the seconds a speed is measured for."""

    data: str
    size: int = 224
    batch_size: int = 64
    seconds: float = 4.0
    width: int = 64
    steps: int = 60


def recipes(size: int) -> dict[str, dp.Recipe]:
    """What is compared, op by op; every one gives uint8 images of `size`."""
    crop = dp.RandomCrop(size)
    alone: tuple[dp.Op, ...] = (
        dp.RandomFlip(vertical=True),
        dp.RandomRotation(-30, 30),
        dp.RandomErasing(),
        dp.RandomBrightness(-0.2, 0.2),
        dp.RandomContrast(0.7, 1.3),
        dp.RandomSaturation(0.7, 1.3),
        dp.RandomHue(-0.1, 0.1),
        dp.Grayscale(),
    )
    made = {
        "crop": (crop, dp.Normalize()),
        "RandomResizedCrop": (dp.RandomResizedCrop(size), dp.Normalize()),
        "Resize": (dp.Resize(size),),
        "ResizeShorter": (dp.ResizeShorter(size + 32), dp.CenterCrop(size)),
        "Pad": (dp.CenterCrop(size), dp.Pad(4), crop),
        **{type(op).__name__: (crop, op) for op in alone},
    }
    label = dp.OneHot(1000)
    return {
        **{name: dp.Recipe(ops, "uint8") for name, ops in made.items()},
        "MixUp": dp.Recipe((crop,), "uint8", label=label, mix=dp.MixUp()),
        "CutMix": dp.Recipe((crop,), "uint8", label=label, mix=dp.CutMix()),
    }


def checks() -> list[Check]:
    """All cases, the most important first."""
    gpu = ("gpu",)
    speeds = [
        Check(kind="speed", name=f"{device} {dtype}", needs=gpu if device == "gpu" else (), device=device, dtype=dtype)
        for device in ("gpu", "cpu")
        for dtype in ("uint8", "float16", "float32")
    ]
    return [
        Check(kind="parity", name="crop, decoded on each device", needs=gpu),
        Check(kind="parity", name="crop and normalise, float32", needs=gpu, dtype="float32", decoder="on the CPU"),
        *speeds,
        Check(kind="speed", name="gpu uint8, region decode", needs=gpu, decoder="region"),
        Check(kind="parity", name="crop, region decode", needs=gpu, decoder="region"),
        Check(kind="speed", name="gpu uint8, random resized crop", needs=gpu, recipe="RandomResizedCrop"),
        *(Check(kind="speed", name=f"hardware decoder {x:.0%}", needs=gpu, hw_decoder_load=x) for x in HARDWARE_LOADS),
        *(Check(kind="speed", name=f"{n} threads", needs=gpu, threads=n) for n in THREADS),
        Check(kind="torchvision", name="torchvision's nvJPEG", needs=("gpu", "torchvision")),
        Check(kind="fit", name="ResNet-18, ours on the GPU", needs=("gpu", "tensorflow")),
        Check(kind="fit", name="ResNet-18, ours on the CPU", needs=("tensorflow",), device="cpu"),
        *(
            Check(kind="parity", name=f"{name} alone", needs=gpu, recipe=name, decoder="on the CPU")
            for name in recipes(224)
        ),
    ]


def missing(check: Check) -> str | None:
    """Why a case cannot run here; None if it can."""
    if importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None:
        return "DALI is not installed"
    if "gpu" in check.needs and not dali_gpu_count():
        return "needs a GPU that DALI can use"
    for module in ("tensorflow", "torchvision"):
        if module in check.needs and importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    return None

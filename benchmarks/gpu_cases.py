"""What `gpu_check` asks of a machine: its cases, and what each of them needs."""

import importlib.util
from dataclasses import dataclass
from typing import Literal

import dali_pipe as dp
from dali_pipe.device import dali_gpu_count

Kind = Literal["parity", "speed", "torchvision", "pipeline", "fit"]
Decoder = Literal["whole", "region", "on the CPU", "alone"]
HARDWARE_LOADS, THREADS = (0.0, 0.25, 0.5, 0.75, 1.0), (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One case.

    Attributes:
        kind: what is asked: "parity" and "speed" of DALI alone; "torchvision" of its decoder; "pipeline" is a data set
            in TensorFlow, "fit" a model that trains on ours.
        name: for people.
        needs: what must be there: "gpu", "tensorflow", "torchvision".
        recipe: a name in `recipes`.
        dtype: of the batches.
        device: that DALI runs on.
        pipeline: of kind "pipeline": the module in `benchmarks.pipelines`.
        decoder: on the GPU: "whole" is the product's; "region" decodes only the crop's window there; "on the CPU"
            leaves the decoder out of a comparison; "alone" leaves out all but the decoder.
        hw_decoder_load: share of the images that go to the hardware decoder; None is DALI's choice.
        threads: of DALI, on the CPU; None is one for each core, 16 at most.
    """

    kind: Kind
    name: str
    needs: tuple[str, ...] = ()
    recipe: str = "crop"
    dtype: Literal["uint8", "float16", "float32"] = "uint8"
    device: Literal["cpu", "gpu"] = "gpu"
    pipeline: Literal["", "tuned", "ours"] = ""
    decoder: Decoder = "whole"
    hw_decoder_load: float | None = None
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cases share.

    Attributes:
        data: a glob of TFRecord files.
        size: pixels of the crop's side.
        batch_size: images; fewer where there are fewer records.
        seconds: that a speed is measured for.
        width: channels of the first stage of the model in `fit`.
        steps: of an epoch of `fit`.
    """

    data: str
    size: int = 224
    batch_size: int = 64
    seconds: float = 4.0
    width: int = 64
    steps: int = 60


# What the goals are about: `gpu_goals` finds them by kind and name.
_GPU = ("gpu",)
DALI_ALONE = Check(kind="speed", name="gpu uint8", needs=_GPU)
DECODER = Check(kind="speed", name="gpu, decoder alone", needs=_GPU, decoder="alone")
NVJPEG = Check(kind="torchvision", name="torchvision's nvJPEG", needs=("gpu", "torchvision"))
TUNED = Check(kind="pipeline", name="tuned tf.data", needs=("tensorflow",), device="cpu", pipeline="tuned")
OURS = Check(kind="pipeline", name="ours on the GPU", needs=("gpu", "tensorflow"), pipeline="ours")
FIT = Check(kind="fit", name="ResNet-18, ours on the GPU", needs=("gpu", "tensorflow"))


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
    speeds = [
        Check(kind="speed", name=f"{device} {dtype}", needs=_GPU if device == "gpu" else (), device=device, dtype=dtype)
        for device in ("gpu", "cpu")
        for dtype in ("uint8", "float16", "float32")
    ]
    return [
        Check(kind="parity", name="crop, decoded on each device", needs=_GPU),
        Check(kind="parity", name="crop and normalise, float32", needs=_GPU, dtype="float32", decoder="on the CPU"),
        *speeds,
        DECODER,
        NVJPEG,
        TUNED,
        OURS,
        FIT,
        Check(kind="speed", name="gpu uint8, region decode", needs=_GPU, decoder="region"),
        Check(kind="parity", name="crop, region decode", needs=_GPU, decoder="region"),
        Check(kind="speed", name="gpu uint8, random resized crop", needs=_GPU, recipe="RandomResizedCrop"),
        *(Check(kind="speed", name=f"hardware decoder {x:.0%}", needs=_GPU, hw_decoder_load=x) for x in HARDWARE_LOADS),
        *(Check(kind="speed", name=f"{n} threads", needs=_GPU, threads=n) for n in THREADS),
        Check(kind="fit", name="ResNet-18, ours on the CPU", needs=("tensorflow",), device="cpu"),
        *(
            Check(kind="parity", name=f"{name} alone", needs=_GPU, recipe=name, decoder="on the CPU")
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

"""What a model is measured in: the --dtype that is asked for, or where that is auto, the faster one."""

from pathlib import Path

import torch

from pipeline.models.devices import supports_bfloat16
from pipeline.results.claim import what_made
from pipeline.stage import logger
from pipeline.training.precision import faster_dtype

AUTO = "auto"


def dtype_of_results(asked: str, results: Path, stage: str, model: str, device: torch.device) -> str:
    """`asked`; where it is auto, what results already begun have, else what is faster on this device.

    Results of one model are of one dtype: a measurement that goes on elsewhere must not change it, and one of
    several tasks finds what the first of them chose. A GPU without bfloat16 gets float32, and that is said.
    """
    if asked == "bfloat16" and not supports_bfloat16(device):
        logger.warning("%s has no bfloat16; float32 is used", torch.cuda.get_device_name(device))
        return "float32"
    if asked != AUTO:
        return asked
    begun = what_made(results, stage, model) or {"settings": {}}
    begun_in = begun["settings"].get("dtype")
    return str(begun_in or faster_dtype(device)).removeprefix("torch.")

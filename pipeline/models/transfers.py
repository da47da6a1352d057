"""Inputs on their way to the device, so that neither it nor the host waits for the other."""

import numpy as np
import torch


def to_device(array: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """The array as a tensor on `device`, of the same dtype.

    To a GPU it goes from page-locked memory, behind what was queued there before: the host goes on at once,
    and torch keeps the copy until it has been read.
    """
    tensor = torch.as_tensor(array)
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)

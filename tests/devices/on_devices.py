"""One body of a test for every device: on the CPU in the slow tests, and on a GPU where one is."""

import pytest
import torch

on_devices = pytest.mark.parametrize(
    "device",
    [
        pytest.param(torch.device("cpu"), marks=pytest.mark.slow),
        pytest.param(torch.device("cuda"), marks=pytest.mark.gpu),
    ],
    ids=["cpu", "cuda"],
)

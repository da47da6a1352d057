"""The device that estimates are made for: its peak, given or measured, and how much of it is used."""

from dataclasses import dataclass, field

import torch

from pipeline.training.estimates import GPUS, Device
from pipeline.training.throughput import measured_peak_flops


@dataclass
class Machine:
    """The device that would run the study, and how fast it is."""

    utilization: float
    """Of the peak, assumed: a fraction."""
    peak_flops: float | None = None
    """FLOPs a second in any dtype. None: those of `gpu`."""
    gpu: str | None = None
    """Of training/estimates.py, whose data sheet counts. None: measured, when first asked for, a dtype."""
    _measured: dict[torch.dtype, float] = field(default_factory=dict)
    _used: dict[torch.dtype, float] = field(default_factory=dict)
    """Of those, what an estimate took: `auto` measures both and takes one."""

    def device(self, dtype: torch.dtype) -> Device:
        """As training/estimates.py takes it."""
        self._used[dtype] = peak = self._peak(dtype)
        return Device(self.gpu or _device_type(), peak, self.utilization)

    def device_in(self, precision: str | None) -> Device:
        """The same for a training's `precision` or a measuring's --dtype; `auto` is the faster of the two."""
        if precision == "auto":
            return self.device(max(torch.float32, torch.bfloat16, key=self._peak))
        return self.device(torch.bfloat16 if precision in ("amp_bf16", "bfloat16") else torch.float32)

    def _peak(self, dtype: torch.dtype) -> float:
        if self.peak_flops is not None:
            return self.peak_flops
        if self.gpu is not None:
            peaks = GPUS[self.gpu]
            return peaks.bfloat16 if dtype == torch.bfloat16 else peaks.float32
        if dtype not in self._measured:
            self._measured[dtype] = measured_peak_flops(torch.device(_device_type()), dtype)
        return self._measured[dtype]

    def __str__(self) -> str:
        """The peaks that were used."""
        use = f"of which {self.utilization:.0%} are assumed to be used"
        if self.peak_flops is not None:
            return f"{self.peak_flops / 1e9:,.0f} GFLOP/s, as given, {use}"
        peaks = [
            f"{peak / 1e9:,.0f} GFLOP/s in {str(dtype).removeprefix('torch.')}"
            for dtype, peak in self._used.items()
        ]
        sheet = "" if self.gpu is None else f" by the data sheet of the {self.gpu.upper()}"
        return f"{' and '.join(peaks)}{sheet}, {use}"


def _device_type() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"

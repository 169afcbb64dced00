"""On a GPU: addresses without memory behind them."""

from __future__ import annotations

import torch
from torch import Tensor

from .driver_memory import DriverMemory
from .page_memory import MOST, ROOM, Pages
from .poison import BYTE


class DevicePages(Pages):
    """An access ends the process's use of the GPU.

    No vector at an aligned address crosses their bounds, so that what lies in the last vector beside elements of a
    tensor may be read.
    """

    def __init__(self, device: torch.device) -> None:
        self._memory = DriverMemory(device)
        guard = self._memory.granularity
        room = -(-ROOM["cuda"] // guard) * guard
        begin = self._memory.reserve(MOST * (room + guard) + guard)
        for k in range(MOST):
            self._memory.back(begin + k * (room + guard) + guard, room)
        super().__init__(device, room, guard, begin)

    def _put_up(self) -> None:
        pass

    def _fill(self, place: int, size: int) -> None:
        self._memory.fill(place, BYTE, size)

    def _tensor(self, place: int, size: int, dtype: torch.dtype) -> Tensor:
        return self._memory.tensor(place, size, dtype)

"""InlineExecutor: runs a model on one GPU inside the call of submit, as on a CPU.

CudaExecutor keeps the lengths of rows on the device and plans on while it computes. Code of
Transformers that computes a sequence at a time needs the lengths on the host, so here the host
waits for every pass: correct, but slow.
"""

from __future__ import annotations

import torch

from quire.backends.choose import torch_kernels
from quire.backends.ops import Kernels
from quire.executor.cpu.local import FinishedStep, LocalExecutor
from quire.executor.cuda.errors import gpu_errors
from quire.executor.cuda.offload import OffloadedWeights, give_back
from quire.executor.executor import ExecutorFacts, Part
from quire.step import StepPlan

POOL_SHARE = 0.75


class InlineExecutor(LocalExecutor):
    """Runs plans inline on one GPU, for models whose layers are not quire's."""

    _on_host: OffloadedWeights | None = None

    def start(self) -> ExecutorFacts:
        with gpu_errors("while starting"):
            return super().start()

    def load_tower(self) -> None:
        super().load_tower()  # returns None: plans alone encode, as one thread uses a GPU

    def submit(self, plan: StepPlan) -> FinishedStep:
        with gpu_errors("in a step"):
            return super().submit(plan)

    def close(self) -> None:
        super().close()
        self._on_host = None
        give_back()

    def sleep(self, *, keep_weights: bool) -> None:
        with gpu_errors("while going to sleep"):
            super().sleep(keep_weights=keep_weights)
            if self._model is None:
                self._on_host = None  # copies of an earlier sleep that kept them
            elif self._on_host is None:
                self._on_host = OffloadedWeights(self._model)
            give_back()

    def wake_up(self, part: Part) -> None:
        with gpu_errors("while waking up"):
            if self._on_host is not None:
                self._on_host.bring_back()
                self._on_host = None
            super().wake_up(part)

    def _free_memory(self) -> int:
        """A share of the free memory. The rest is for passes, whose needs are unknown."""
        give_back()  # memory of the trial
        return int(torch.cuda.mem_get_info()[0] * POOL_SHARE)

    def _computes_with(self) -> str:
        return torch.cuda.get_device_name()

    def _kernels(self) -> Kernels:
        """Kernels in plain torch; the model computes attention itself."""
        return torch_kernels(self._shape, batch_invariant=False)

"""InlineExecutor: a model on one GPU that is computed where submit is called, as on a CPU.

CudaExecutor leaves the lengths of rows to the device, and plans on while it computes. Code of
others that computes a sequence at a time asks the host for them, so here the host waits for every
pass: right, and slow.
"""

from __future__ import annotations

import torch

from quire.backends.choose import torch_kernels
from quire.backends.ops import Kernels
from quire.executor.cpu.local import FinishedStep, LocalExecutor
from quire.executor.cuda.errors import gpu_errors
from quire.executor.cuda.offload import HostCopies, give_back
from quire.executor.executor import ExecutorFacts, Part
from quire.step import StepPlan

POOL_SHARE = 0.75


class InlineExecutor(LocalExecutor):
    """Runs plans inline on one GPU, for models whose layers are not quire's."""

    _on_host: HostCopies | None = None

    def start(self) -> ExecutorFacts:
        with gpu_errors("while starting"):
            return super().start()

    def load_tower(self) -> None:
        super().load_tower()  # plans alone encode: one thread launches on a GPU

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
                self._on_host = None  # of an earlier sleep, which kept them
            elif self._on_host is None:
                self._on_host = HostCopies(self._model)
            give_back()

    def wake_up(self, part: Part) -> None:
        with gpu_errors("while waking up"):
            if self._on_host is not None:
                self._on_host.bring_back()
                self._on_host = None
            super().wake_up(part)

    def _free_memory(self) -> int:
        """Less what is left to passes: what those take only their code knows."""
        give_back()  # what the trial took
        return int(torch.cuda.mem_get_info()[0] * POOL_SHARE)

    def _computes_with(self) -> str:
        return torch.cuda.get_device_name()

    def _kernels(self) -> Kernels:
        """Those that any device has: attention is the model's own."""
        return torch_kernels(self._shape, batch_invariant=False)

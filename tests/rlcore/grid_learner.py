"""A learner whose gradients a test may see, started again and again in one process."""

from dataclasses import replace

from rlcore.learner import Learner


class GridLearner(Learner):
    def restart(self, zero: dict, host: str, port: int, dtype: str) -> None:
        """A fresh model, optimizer and DeepSpeed engine with other ZeRO settings, in the process group that is there."""
        self.options = replace(self.options, deepspeed={"zero_optimization": zero}, dtype=dtype)
        self.start(host, port)

    def gradients(self, rows, loss):
        """The window's gradient as one tensor, before clipping; the weights stay as they are."""
        import torch
        from deepspeed.utils import safe_get_full_grad

        engine = self._engine
        for index, row in enumerate(rows):
            engine.set_gradient_accumulation_boundary(index == len(rows) - 1)
            engine.backward(self._row_loss(row, loss, None)[0] * self.options.ranks)
        result = torch.cat([safe_get_full_grad(p).float().flatten() for p in engine.module.lm.parameters()])
        result = result.clone()
        for group in engine.optimizer.param_groups:
            group["lr"] = 0.0
        engine.step()
        return result

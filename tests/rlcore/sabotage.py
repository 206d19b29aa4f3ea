"""A worker extension that breaks weight pushes on purpose, to see the parity probe fire."""

from rlcore.weight_receiver import WeightReceiverExtension


class Sabotage(WeightReceiverExtension):
    def corrupt_pushed(self, name: str, amount: float) -> None:
        """From the next push on, add `amount` to one tensor on its way into the model; 0 heals."""
        model = self.model_runner.get_model()
        load = type(model).load_weights

        def corrupted(pairs):
            return load(model, [(n, t + amount if n == name else t) for n, t in pairs])

        model.load_weights = corrupted

    def keep_stale_head(self, stale: bool) -> None:
        """Whether the tied head goes on multiplying by its old packed weights after a push, as vLLM's reload leaves it."""
        method = self.model_runner.get_model().lm_head.quant_method
        if stale:
            method.process_weights_after_loading = lambda layer: None
        elif "process_weights_after_loading" in vars(method):
            del method.process_weights_after_loading

"""The levers, as rows of the table `gpu_levers`."""

from __future__ import annotations

from torch import Tensor, nn

from cloze.labs.levers import attention, half_weights, tied_table
from cloze.labs.levers.graphs import StepGraphs, capture_on_gpu
from cloze.model.train.engines.torch import TorchEngine
from cloze.model.train.optimizers.parameters import trained_parameters
from cloze.model.train.precision import DTYPES
from cloze.model.train.spec.levers import Lever, LeverContext


def _engine_obstacle(context: LeverContext) -> str:
    return "" if context.engine == "torch" else f"engine {context.engine} has steps of its own"


def _packed_obstacle(context: LeverContext) -> str:
    return "" if context.layout == "packed" else "batches keep their padding"


class Attention(Lever):
    """The chip's flash attention in place of torch's FlashAttention 2."""

    def obstacle(self, context: LeverContext) -> str:
        return _packed_obstacle(context)

    def prepare(self, network: nn.Module, context: LeverContext, compiled: bool) -> str:
        return attention.activate(network, context.device, compiled)


class Shapes(Lever):
    """Few numbers of tokens and predictions, with compiled graphs for each."""

    fixed_sizes = static = True

    def obstacle(self, context: LeverContext) -> str:
        # The kernel runs once for each kind of row, over any number of tokens.
        mixed = "some rows are read left to right" if context.causal_share else ""
        return _packed_obstacle(context) or mixed


class Graphs(Shapes):
    """A CUDA graph of forward and backward pass for each shape of a micro-batch."""

    static = False

    def obstacle(self, context: LeverContext) -> str:
        if context.processes > 1:
            return "it is for one process"
        if context.precision == "fp16":
            return "the loss scale of fp16 changes"
        return super().obstacle(context) or _engine_obstacle(context) or context.second_network

    def prepare(self, network: nn.Module, context: LeverContext, compiled: bool) -> str:
        return "gpu_levers: graphs keeps activations twice; lower micro_batch if memory ends"

    def attach(self, engine: TorchEngine, network: nn.Module) -> None:
        parameters = [parameter for _, parameter in trained_parameters(network)]
        graphs = StepGraphs(parameters, engine.forward_backward, capture_on_gpu())
        engine.graphs = graphs.run


class WholeStep(Lever):
    """One compiled graph of loss and network, if the training is long."""

    whole_step = True

    def obstacle(self, context: LeverContext) -> str:
        return _engine_obstacle(context) or context.second_network


class Clip(Lever):
    """The fused AdamW clips gradients while it reads them."""

    def obstacle(self, context: LeverContext) -> str:
        fused = context.optimizer == "adamw"
        return _engine_obstacle(context) or ("" if fused else f"{context.optimizer} is not fused")

    def attach(self, engine: TorchEngine, network: nn.Module) -> None:
        def clip(limit: float, norm: Tensor) -> None:
            # torch divides by it; the constant is that of `clip_grads_with_norm_`.
            engine.optimizer.grad_scale = ((norm + 1e-6) / limit).clamp(min=1.0)  # type: ignore[attr-defined]

        engine.clip_gradients = clip


class _Copies(Lever):
    """Half-precision copies of weights, which the update writes."""

    def obstacle(self, context: LeverContext) -> str:
        full = "precision is fp32" if context.precision == "fp32" else ""
        # A second network's weights change without an update, and their copies would not.
        return _engine_obstacle(context) or full or context.second_network

    def attach(self, engine: TorchEngine, network: nn.Module) -> None:
        half_weights.write_after_updates(engine, network)


class Weights(_Copies):
    """Copies of the layers' matrices, with query, key and value as one."""

    def prepare(self, network: nn.Module, context: LeverContext, compiled: bool) -> str:
        added = half_weights.add_copies(network, DTYPES[context.precision])
        return "" if added else "gpu_levers: weights changes nothing: no layer has such a matrix"


class WordTable(_Copies):
    """One gradient of the word table, into which lookup and loss add."""

    def obstacle(self, context: LeverContext) -> str:
        # Ranks send a gradient when autograd has added it up.
        return super().obstacle(context) or (
            "it is for one process" if context.processes > 1 else ""
        )

    def prepare(self, network: nn.Module, context: LeverContext, compiled: bool) -> str:
        added = tied_table.add_copy(network, DTYPES[context.precision], context.device)
        return "" if added else "gpu_levers: table changes nothing: no head multiplies with one"


class Finetune(Lever):
    """Fine-tuning is compiled when a pretraining of its length would be."""

    finetunes = True


ATTENTION, SHAPES, GRAPHS, WHOLE_STEP = Attention(), Shapes(), Graphs(), WholeStep()
CLIP, WEIGHTS, TABLE, FINETUNE = Clip(), Weights(), WordTable(), Finetune()

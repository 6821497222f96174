"""Fine-tuning with pretraining's loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.model import checkpoint
from cloze.model.checkpoint import LoadedCheckpoint
from cloze.model.families.models import attach
from cloze.model.families.pruned import is_layer_matrix
from cloze.model.layers.encoder import enable_activation_checkpointing
from cloze.model.tasks.auxiliary import add_auxiliary, without_auxiliary
from cloze.model.tasks.encode import groups_of
from cloze.model.tasks.finetune.config import FinetuneConfig
from cloze.model.tasks.heads import FrozenNetwork, check_frozen, new_network, trained_network
from cloze.model.tasks.predict import DevEvaluator, predict_split
from cloze.model.tasks.source import AuxiliarySource, TaskObjective, source_of
from cloze.model.tasks.table import load_task, merge_options
from cloze.model.tasks.task import Split, Task, TaskMetadata
from cloze.model.tasks.teacher import TaskTeacher
from cloze.model.train.compile_policy import WorkEstimate, decide_on_gpu, recorded_decision
from cloze.model.train.distributed import StopRequest, World
from cloze.model.train.loop.loop import train
from cloze.model.train.optimizers.parameters import (
    freeze_unused,
    gradual_unfreezing,
    layerwise_lr_multipliers,
)
from cloze.model.train.plan import micro_batch
from cloze.model.train.plan.estimates import (
    FORWARD,
    StepCost,
    encoder_flops_per_token,
    logit_flops_per_token,
)
from cloze.model.train.precision import Precision, resolve_for_run
from cloze.model.train.resume import state
from cloze.model.train.spec.engine_choice import EngineConfig, choose_engine
from cloze.model.train.spec.levers import LeverContext, usable_levers
from cloze.model.train.spec.schedules import Schedule, StepDuration
from cloze.model.train.spec.train_spec import (
    CheckpointSpec,
    DataSpec,
    ExecutionSpec,
    LoggingSpec,
    TrainingHyperparameters,
    TrainingResult,
    TrainSpec,
)

SPREAD = 8  # samples, see `spread`
LINES, MOST_STEPS = 100, 100  # log entries per training, and maximum steps between two


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneSetup:
    """Common inputs of the trainings of one stage.

    Attributes:
        metadata: task metadata, stored in the checkpoint.
        teacher: the student's teacher; None without one.
    """

    config: FinetuneConfig
    build: BuildContext
    world: World
    stop: StopRequest
    task: Task[Any, Any]
    start: LoadedCheckpoint
    metadata: TaskMetadata
    train: Split
    dev: Split
    teacher: TaskTeacher | None = None
    notes: Sequence[str] = ()  # of the splits, see `CHECKS`

    @property
    def steps_per_epoch(self) -> int:
        groups = groups_of(self.train.samples)
        return sum(math.ceil(len(group) / self.config.global_batch) for group in groups)

    @property
    def steps(self) -> int:
        return self.config.epochs * self.steps_per_epoch

    @property
    def learning_rate(self) -> float:
        return self.config.peak_learning_rate(self.start.model.hidden_size)

    def with_tuned_options(self, predictions: Any) -> FinetuneSetup:
        """Return the setup with the decoding options tuned on these dev predictions."""
        tuned = self.task.tuned_options(self.dev.examples, predictions)
        if not tuned:
            return self
        options = merge_options(self.config.options, tuned)
        task = load_task(self.task.name, options)
        options.pop("tasks", None)  # these are in the metadata of several tasks
        metadata = {**self.metadata, **task.metadata(self.train.examples), "options": options}
        return replace(self, task=task, metadata=metadata)

    @property
    def saved(self) -> checkpoint.Metadata:
        """Metadata of the checkpoints."""
        return checkpoint.Metadata(
            model=self.start.model,
            heads=self.task.heads(self.metadata),
            tokenizer=self.start.tokenizer,
            task=self.metadata,
            dataset=self.start.dataset,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneResult:
    """Finished training.

    Attributes:
        step: step of the saved weights: the last, or the best.
        weights: weights of that step on the CPU; may be empty on ranks other than 0.
        predictions: predictions for the dev split, equal on all ranks.
    """

    finished: TrainingResult
    step: int
    weights: Mapping[str, Tensor]
    predictions: Any
    precision: Precision

    @property
    def best(self) -> dict[str, float]:
        """Best score during training, with its step first."""
        best = dict(self.finished.progress.best or {})
        return {name: best[name] for name in sorted(best, key=lambda name: (name != "step", name))}


def fit(
    setup: FinetuneSetup, weights: Mapping[str, Tensor], path: str, report: Reporter
) -> FinetuneResult:
    """Train once, resuming from the newest checkpoint below `path`; every rank calls it.

    Args:
        weights: initial encoder and pooler; empty: random weights.

    Raises:
        StoppedError: SIGTERM or SIGINT came to any rank; a checkpoint is saved.
        DataError: the checkpoints below `path` are damaged.
        ClozeError: the disk is full, or too many steps in a row had no finite gradient.
    """
    training, resumed = prepare(setup, weights, path)
    evaluator, precision = training.evaluator, training.hyperparameters.precision
    assert isinstance(evaluator, DevEvaluator)
    finished = train(training, setup.build, setup.world, setup.stop, resumed, report)
    step, best = finished.progress.step, finished.progress.best
    if finished.best is None or best is None or best["step"] == step:
        predictions = evaluator.predictions(step)
        last = storage.join(path, finished.checkpoint)
        weights = without_auxiliary(checkpoint.weights(last)) if setup.world.is_rank_zero else {}
    else:
        step = int(best["step"])
        weights = without_auxiliary(checkpoint.weights(storage.join(path, finished.best)))
        device = setup.world.device
        network = trained_network(setup.task, setup.start.model, weights, setup.metadata, path)
        attach(network, setup.start.tokenizer, path, setup.metadata)
        objective = TaskObjective(setup.task, network.to(device), precision, device)
        predictions = predict_split(objective, setup.dev, setup.world)
    return FinetuneResult(
        finished=finished, step=step, weights=weights, predictions=predictions, precision=precision
    )


def prepare(
    setup: FinetuneSetup, weights: Mapping[str, Tensor], path: str
) -> tuple[TrainSpec, state.ResumeState | None]:
    """Build the network, split the batch, and find the checkpoint to resume; arguments as `fit`."""
    config, build, world, task = setup.config, setup.build, setup.world, setup.task
    execution, model, notes = build.execution, setup.start.model, list[str]()
    resumed = state.resume(path, build.fingerprint, world, notes)
    precision = resolve_for_run(
        config.precision, resumed.run.precision if resumed else None, world.device, notes
    )
    network = new_network(task, model, weights or None, setup.metadata, config.dropout, config.seed)
    attach(network, setup.start.tokenizer, path, setup.metadata)
    auxiliary = add_auxiliary(
        network, config.auxiliary, model, weights, setup.start.tokenizer, config.seed
    )
    teacher = setup.teacher
    teacher_losses = None if teacher is None else teacher.losses_of(network, model)
    if execution.activation_checkpointing:
        enable_activation_checkpointing(network)
    # Parameters are counted before an engine shards them.
    parameters = sum(parameter.numel() for parameter in network.parameters())
    checkpoint_count = execution.keep_checkpoints + config.selects_best
    world.decide_on_rank_zero(lambda: micro_batch.check_disk(path, parameters, checkpoint_count))
    memory = micro_batch.device_memory(world.device)
    engine = choose_engine(execution, world.size, parameters, memory)
    if config.keep_zeros:
        keep_zeros(network, config.optimizer, engine)
    if engine.reason:
        notes.append(f"engine {engine.name}: {engine.reason}")
    if isinstance(network, FrozenNetwork):
        check_frozen(setup.train.samples)
    compiled = _compiled(setup, resumed.run.compiled if resumed else None, engine, notes)
    by_lever = _compiles_by_lever(setup, engine, precision, notes)
    compiled = by_lever if compiled is None else compiled
    objective = TaskObjective(
        task,
        network,
        precision,
        world.device,
        compiled=compiled,
        auxiliary=auxiliary,
        teacher_losses=teacher_losses,
    )
    samples = setup.train.samples
    unused = freeze_unused(
        objective,
        *(
            objective.trial_batch(samples, spread(numbers, samples.lengths))
            for numbers in groups_of(samples)
        ),
    )
    if teacher is not None:  # only now: `freeze_unused` runs the network on the CPU
        teacher.network.to(world.device)
    if isinstance(network, FrozenNetwork):
        unused = [name for name in unused if not name.startswith("encoder.")]
    if unused:
        notes.append(f"not trained, as the task does not use them: {', '.join(unused)}")
    plan = micro_batch.plan(
        config.global_batch,
        execution.micro_batch,
        StepCost(
            model,
            int(setup.train.samples.lengths.max()),
            micro_batch.compute_options(execution, precision, world.device, engine=engine),
        ),
        world,
    )
    objective.set_compiled(compiled)
    source = source_of(
        setup.train.samples,
        batch_size=config.global_batch,
        seed=config.seed,
        micro_batch=plan.micro_batch,
        layout=objective.layout,
        power=config.task_sampling_power,
    )
    decides = config.selects_best or config.patience is not None
    evaluator = DevEvaluator(
        objective, setup.train, setup.dev, world, source.steps_per_epoch, decides
    )
    training = TrainSpec(
        path=path,
        config=config.model_dump(mode="json"),
        hyperparameters=TrainingHyperparameters(
            duration=StepDuration(steps=setup.steps, span=setup.steps),
            learning_rate=setup.learning_rate,
            schedule=Schedule(
                name=config.schedule,
                warmup=math.ceil(setup.steps * config.warmup_share),
                decay=config.decay_share,
            ),
            seed=config.seed,
            precision=precision,
            optimizer=config.optimizer,
            weight_decay=config.weight_decay,
            grad_clip=config.grad_clip,
            rate=layerwise_lr_multipliers(network.state_dict(), config.layer_decay),
            rates={"embeddings": config.embedding_lr_multiplier},
            first_step=gradual_unfreezing(
                network.state_dict(), config.unfreeze_layers, source.steps_per_epoch
            ),
        ),
        trained=objective,
        data=DataSpec(source=AuxiliarySource(source, auxiliary) if auxiliary else source),
        execution=ExecutionSpec(
            engine=engine,
            micro_batch=plan.micro_batch,
            accumulation=plan.accumulation,
            compiled=compiled,
        ),
        checkpoints=CheckpointSpec(metadata=setup.saved, keep_best=config.selects_best),
        logging=LoggingSpec(
            interval=min(MOST_STEPS, max(setup.steps // LINES, 1)),
            notes=notes,
            flops_per_token=partial(_flops_per_token, setup),
        ),
        evaluator=evaluator,
        patience=config.patience,
    )
    return training, resumed


def keep_zeros(network: nn.Module, optimizer: str, engine: EngineConfig) -> None:
    """Make the gradient zero where a weight of a layer's matrix is; it then stays zero.

    Raises:
        UsageError: optimizer or engine would change such a weight.
    """
    if optimizer == "muon" or engine.name != "torch":
        raise UsageError(
            f"keep_zeros (true) is for elementwise optimizers and the engine torch, not for "
            f"{optimizer} and {engine.name}; use --optimizer adamw --engine torch"
        )
    for name, weight in network.named_parameters():
        if is_layer_matrix(name, weight) and not bool(weight.all()):
            mask = weight.detach() != 0
            weight.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient, mask=mask: gradient * mask.to(gradient.device)
            )


def _flops_per_token(setup: FinetuneSetup, attended: float) -> float:
    """Return the operations per token of a step, without the task's head.

    A frozen encoder and a teacher have no backward pass. An auxiliary loss has a pass of the
    encoder and logits of its own.
    """
    encoder = encoder_flops_per_token(setup.start.model, attended)
    flops = encoder * (FORWARD if setup.config.frozen else 1.0)
    if setup.config.auxiliary:
        flops += encoder + logit_flops_per_token(setup.start.model)
    if setup.teacher is not None:
        flops += FORWARD * encoder_flops_per_token(setup.teacher.model, attended)
    return flops


def _compiled(
    setup: FinetuneSetup, recorded: bool | None, engine: EngineConfig, notes: list[str]
) -> bool | None:
    """Return True if the encoder's layers are compiled: if they can be, as recorded or requested.

    None: neither is so.

    Raises:
        UsageError: the network cannot be compiled, or the request contradicts the checkpoint.
    """
    requested, model = setup.build.execution.compile, setup.start.model
    gathers = engine.name == "deepspeed" and engine.zero == 3
    recorded_states = setup.teacher is not None and setup.teacher.objectives
    prevented = setup.config.frozen or gathers or recorded_states or not model.supports_compile
    obstacle = (
        f"frozen features, a teacher's states, ZeRO stage 3, or models of some families (this one "
        f"is {model.family})"
    )
    decision = recorded_decision(requested, recorded, obstacle if prevented else "")
    if decision is not None and decision.reason:
        notes.append(f"not compiled: {decision.reason}")
    return None if decision is None else decision.compiled


def _compiles_by_lever(
    setup: FinetuneSetup, engine: EngineConfig, precision: Precision, notes: list[str]
) -> bool:
    """Return True if a GPU lever compiles fine-tuning, and a pretraining as long would be."""
    context = LeverContext(
        device=setup.world.device,
        engine=engine.name,
        processes=setup.world.size,
        precision=precision,
        optimizer=setup.config.optimizer,
        layout="packed",
        finetuning=True,
    )
    tokens = setup.config.global_batch * float(setup.train.samples.lengths.mean())
    positions = math.ceil(tokens / setup.world.size)
    work = WorkEstimate(micro_batches=setup.steps, positions=positions)
    levers = usable_levers(setup.build.execution.gpu_levers, context, notes)
    return bool(levers) and decide_on_gpu(setup.start.model, work).compiled


def spread(numbers: I64, lengths: I64) -> I64:
    """Return a few of the samples `numbers`: from all over the data, the shortest and the longest.

    What none of them reaches is not trained, and one sample alone may lack what others have.
    """
    by_length = numbers[np.argsort(lengths[numbers], kind="stable")]
    places = np.linspace(0, len(numbers) - 1, SPREAD).astype(np.int64)
    return np.unique(np.concatenate([numbers[places], by_length[[0, -1]]]))

"""`cloze pretrain`, `cloze resume`, `cloze finetune`, `cloze evaluate`."""

from __future__ import annotations

from typing import Any

import click

from flows.commands.common import given, json_option, options, run_stage, stage_options

launch_options = (
    click.option("--processes", type=click.IntRange(min=1), help="Training processes on this machine."),
    click.option("--nodes", type=click.IntRange(min=1), help="Machines that train together."),
    click.option("--node-rank", type=click.IntRange(min=0), help="This machine's number among them."),
    click.option("--master", metavar="HOST:PORT", help="Where the first machine listens."),
    click.option("--zero", type=click.IntRange(0, 3), help="DeepSpeed ZeRO stage."),
    click.option("--micro-batch", type=click.IntRange(min=1), help="Sequences a process takes at once."),
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"])),
    click.option("--checkpoint-every", type=click.IntRange(min=0), help="Steps between checkpoints; 0: only at the end."),
    click.option("--keep-checkpoints", type=click.IntRange(min=1)),
    click.option("--grace-seconds", type=click.FloatRange(min=0), help="Time for a checkpoint after SIGTERM; 25."),
    click.option(
        "--compile/--no-compile", "compile", default=None, help="torch.compile the training step; by default where it pays."
    ),
)


@click.command()
@click.option("--dataset", required=True, metavar="DIR", help="A dataset artifact.")
@click.option(
    "--model", help="A preset such as bert-tiny, roberta-base, albert-large; by default the checkpoint's, or bert-base."
)
@click.option("--checkpoint", metavar="PATH", help="Go on from these weights: an imported or pretrained checkpoint.")
@click.option("--teacher", metavar="PATH", help="What a distilbert learns from: a checkpoint or a Hugging Face directory.")
@click.option(
    "--objective", "objectives", metavar="NAME,…", help="What to train on, such as mlm,nsp; by default the model's own."
)
@click.option("--steps", type=int)
@click.option("--global-batch", type=int, help="Sequences a step, over all processes.")
@click.option("--learning-rate", type=float)
@click.option("--warmup-steps", type=int)
@click.option("--precision", type=click.Choice(["auto", "fp32", "bf16"]))
@click.option("--seed", type=int)
@options(*launch_options)
@stage_options
def pretrain(
    dataset: str,
    model: str | None,
    checkpoint: str | None,
    teacher: str | None,
    objectives: str | None,
    steps: int | None,
    global_batch: int | None,
    learning_rate: float | None,
    warmup_steps: int | None,
    precision: str | None,
    seed: int | None,
    out: str,
    settings: tuple[str, ...],
    force: bool,
    as_json: bool,
    **launch: Any,
) -> None:
    """Pretrain an encoder with DeepSpeed; goes on from the newest checkpoint in --out, if there is one."""
    values = given(
        model=model, steps=steps, global_batch=global_batch, learning_rate=learning_rate,
        warmup_steps=warmup_steps, precision=precision, seed=seed, objectives=objectives.split(",") if objectives else None,
    )  # fmt: skip
    inputs = {"dataset": dataset, "checkpoint": checkpoint, "teacher": teacher}
    run_stage("pretrain", values, inputs, given(**launch), out=out, settings=settings, force=force, as_json=as_json)


@click.command()
@click.argument("path")
@json_option
def resume(path: str, as_json: bool) -> None:
    """Go on with an interrupted pretraining at PATH, with the settings it was begun with."""
    from flows.graph.launch import JOB, LOGS
    from pipeline.core import artifact, storage
    from pipeline.core.errors import DataError
    from pipeline.core.worker import Job

    if artifact.is_artifact(path):
        manifest = artifact.read_manifest(path)
        if manifest.stage != "pretrain":
            raise DataError(f"{path} holds a {manifest.stage} artifact; resume takes the directory of a pretraining")
    job_file = storage.join(path, LOGS, JOB)
    if not storage.exists(job_file):
        raise DataError(
            f"{path} holds no pretraining that was begun ({LOGS}/{JOB} is missing); start one with `cloze pretrain`"
        )
    job = Job.read(job_file)
    if job.stage != "pretrain":
        raise DataError(f"{path} was begun by stage {job.stage}; resume takes the directory of a pretraining")
    run_stage("pretrain", job.config, job.inputs, job.execution, out=path, settings=(), force=False, as_json=as_json)


@click.command()
@click.option("--checkpoint", metavar="PATH", help="A pretrain artifact or a checkpoint directory.")
@click.option("--task", help="sst2, package.")
@click.option("--data", metavar="DIR", help="The task's files.")
@click.option("--corpus", metavar="DIR", help="A corpus artifact, for tasks made from one.")
@click.option("--epochs", type=int)
@click.option("--batch-size", type=int)
@click.option("--learning-rate", type=float)
@click.option("--seed", type=int)
@options(*launch_options)
@stage_options
def finetune(
    checkpoint: str | None,
    task: str | None,
    data: str | None,
    corpus: str | None,
    epochs: int | None,
    batch_size: int | None,
    learning_rate: float | None,
    seed: int | None,
    out: str,
    settings: tuple[str, ...],
    force: bool,
    as_json: bool,
    **launch: Any,
) -> None:
    """Fine-tune a pretrained encoder on a task."""
    values = given(task=task, data=data, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, seed=seed)
    inputs = {"pretrain": checkpoint, "corpus": corpus}
    run_stage("finetune", values, inputs, given(**launch), out=out, settings=settings, force=force, as_json=as_json)


@click.command()
@click.option("--checkpoint", required=True, metavar="PATH", help="A finetune artifact or its checkpoint.")
@click.option("--data", metavar="DIR", help="The task's files.")
@click.option("--corpus", metavar="DIR", help="A corpus artifact, for tasks made from one.")
@click.option("--split", help="dev (the default) or test.")
@stage_options
def evaluate(checkpoint: str, data: str | None, corpus: str | None, split: str | None, **how: Any) -> None:
    """Evaluate a fine-tuned checkpoint: metrics and a prediction file."""
    run_stage("evaluate", given(data=data, split=split), {"finetune": checkpoint, "corpus": corpus}, {}, **how)

"""What a verb is: `cloze VERB CHECKPOINT [TEXT]...` loads a checkpoint once and answers requests in a process of its own.

A verb is a stage without an artifact. The process that the user started (flows, no torch) takes the options, hands standard input on, and
prints; a worker (model) reads the requests, asks the model, and sends the answers back as they come. To add one:

1. `model/use/NAME.py`, with torch: a `Verb` (see `model.use.serve`), and `open_verb`, which makes one.

       class Shouting(Verb[str]):
           def __init__(self, checkpoint: str, config: ShoutConfig) -> None: ...
           def read(self, request: Request) -> str:
               return request.text("text")                     # what is wrong with a request is raised here, one by one
           def answer(self, group: Sequence[str]) -> Sequence[dict[str, Any]]:
               return [{"text": text, "loud": text.upper()} for text in group]

2. `model/use/NAME_stage.py`, without torch: its options and its stage.

       class ShoutConfig(VerbConfig):
           times: int = Field(default=1, ge=1)
           \"\"\"The option's help.\"\"\"

       STAGE = verb_stage("shout", ShoutConfig, "model.use.shout:Shouting")

3. `flows/commands/NAME.py`: `verb_options` gives CHECKPOINT, TEXT, --text, --file, --out and --json; `show` is how a person sees an answer.

       @click.command("shout")
       @verb_options()
       @click.option("--times", default=1)
       def shout(asked: Asked, times: int) -> None:
           \"\"\"Shout TEXT.\"\"\"
           ask("shout", asked, {"times": times}, show=lambda found: found["loud"])

4. A line in `flows.graph.stages.TOOLS` and one in `flows.cli.COMMANDS`.
"""

from __future__ import annotations

from model.use.verb_config import VerbConfig
from pipeline.core.registry import load
from pipeline.core.stage import Build, Input, Outcome, Stage

VERSION = 1


def verb_stage(name: str, config: type[VerbConfig], opens: str, first: str = "text") -> Stage:
    """The stage of a verb.

    Args:
        config: its options.
        opens: `module:function` of what takes the checkpoint's path and the config and gives a `model.use.serve.Verb`.
        first: the field that a line of a plain file is.
    """

    def run(config: VerbConfig, build: Build) -> Outcome:
        from model.use.serve import serve

        return serve(load(opens)(build.inputs["checkpoint"], config), config, first, build)

    return Stage(
        name=name, version=VERSION, config=config, run=run, inputs={"checkpoint": Input(required=True)}, worker="model"
    )

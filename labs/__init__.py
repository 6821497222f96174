"""Labs: plug-ins that ship with Cloze, for what is beside the main job. See README.md."""

# In the order of `cloze --help`; each is read as a plug-in of another package is.
PLUGINS = (
    "cloze.labs.before_bert.plugin:PLUGIN",
    "cloze.labs.costs.plugin:PLUGIN",
    "cloze.labs.docstrings.plugin:PLUGIN",
    "cloze.labs.domain.plugin:PLUGIN",
    "cloze.labs.downloads.plugin:PLUGIN",
    "cloze.labs.enterprise_html.plugin:PLUGIN",
    "cloze.labs.exports.plugin:PLUGIN",
    "cloze.labs.inside.plugin:PLUGIN",
    "cloze.labs.kubernetes.plugin:PLUGIN",
    "cloze.labs.languages.plugin:PLUGIN",
    "cloze.labs.levers.plugin:PLUGIN",
    "cloze.labs.longformer.plugin:PLUGIN",
    "cloze.labs.papers.plugin:PLUGIN",
    "cloze.labs.planning.plugin:PLUGIN",
    "cloze.labs.records.plugin:PLUGIN",
    "cloze.labs.relations.plugin:PLUGIN",
    "cloze.labs.retrieval.plugin:PLUGIN",
    "cloze.labs.selection.plugin:PLUGIN",
    "cloze.labs.seq2seq.plugin:PLUGIN",
    "cloze.labs.serving.plugin:PLUGIN",
    "cloze.labs.task_card.plugin:PLUGIN",
    "cloze.labs.trackers.plugin:PLUGIN",
    "cloze.labs.xlnet.plugin:PLUGIN",
)

"""Classes of commands and options: what enters is a stage's config, what leaves are options.

Read `stage_command.py` first. `field_options.py` makes an option of each config field,
`placement.py` says under which heading, `options.py` prints them, and `inference_command.py` is
the counterpart of `stage_command.py` for commands that answer requests.
"""

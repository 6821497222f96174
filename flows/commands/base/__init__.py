"""Classes of commands, and the options that they make from the config of a stage.

Read `stage_command.py` first. `field_options.py` makes an option from each config field,
`options.py` assigns its heading and prints the options. `inference_command.py` is
the counterpart of `stage_command.py` for commands that answer requests.
"""

"""`cloze serve`: an HTTP server in front of one worker process per model.

Requests enter at `application`, wait in the queue of their `ServedModel`, and go in batches to its
`WorkerProcess`. Read `served_model` first.
"""

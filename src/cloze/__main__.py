"""`python -m cloze`, and the console script: the command line."""

import signal

# Until the command line is imported, Ctrl-C ends the process without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from cloze.flows.cli import entry

if __name__ == "__main__":
    entry()

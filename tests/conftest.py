"""What all tests share."""

import signal

# A test run that a shell started in the background has Ctrl-C ignored, one under nohup the end of
# the terminal; and so would have the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

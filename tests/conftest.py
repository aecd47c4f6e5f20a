"""What all tests share."""
import signal

# A test run that a shell started in the background has Ctrl-C ignored, and so would have the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

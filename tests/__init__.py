"""Every process that runs tests imports this first.

TensorFlow's start-up lines would bury a failing test's output.
"""

import os
import signal

from tf_bridge import quiet

os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # several test processes may share one GPU
quiet.load_frameworks()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a background job's is; its children would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)

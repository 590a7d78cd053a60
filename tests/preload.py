"""What the fork server imports once for all tests that need a process of their own; nothing here starts a thread."""

import keras  # noqa: F401
import nvidia.dali.plugin.tf  # noqa: F401
import tensorflow  # noqa: F401

import tf_bridge.dali_engine
import tf_bridge.dataset
import tf_bridge.resnet  # noqa: F401

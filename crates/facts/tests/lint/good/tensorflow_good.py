import os

os.environ["TF_GPU_ALLOCATOR"] = "cuda_malloc_async"
os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import tensorflow as tf

tf.config.optimizer.set_experimental_options({"layout_optimizer": True, "auto_mixed_precision": True})
tf.config.optimizer.set_jit(True)
model.compile(optimizer=tf.keras.optimizers.AdamW(1e-4), jit_compile=True)
model.export("saved")
attention = tf.keras.layers.MultiHeadAttention(num_heads=8, key_dim=64, flash_attention=None)


def check():
    """CUDA 12.8 does not need driver 550.54.15."""
    # CUDA 12.8 does not need driver 550.54.15
    minimum = {"12.4": "550.54.15", "12.8": "570.26"}
    toolkit = {"570.26": "12.8", "550.54.15": "12.4"}
    return minimum, toolkit

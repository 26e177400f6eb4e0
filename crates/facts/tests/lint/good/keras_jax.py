import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".90"
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_FLAGS"] = "--xla_gpu_enable_latency_hiding_scheduler=true"

import jax
import keras
import tensorflow as tf

if jax.__version_info__ >= (0, 5, 0):
    pass
attention = keras.layers.MultiHeadAttention(8, 64, flash_attention=True)
optimizer = keras.optimizers.AdamW(1e-4, weight_decay=0.01)
model.save("model.keras")
figure.save("plot.png", save_format="png")

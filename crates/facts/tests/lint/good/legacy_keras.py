import tensorflow as tf
import tf_keras

model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
model.save("out", save_format="tf")
capability = float(f"{major}.{minor}")
if capability >= 8.9 and float(os.environ.get("CUDA_SCALE", "1.5")) > 1.2:
    pass

import keras
import tensorflow as tf

attention = keras.layers.MultiHeadAttention(8, 64, flash_attention=True)  #~ keras-flash-attention-backend
attention = tf.keras.layers.MultiHeadAttention(
    num_heads=8,
    key_dim=64,
    flash_attention=True,  #~ keras-flash-attention-backend
)

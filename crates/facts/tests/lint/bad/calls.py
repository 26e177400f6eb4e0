import keras
import tensorflow as tf
import torch as t
from tensorflow.keras.optimizers import AdamW
from tensorrt_llm.builder import Builder, BuilderConfig  #~ trtllm-removed
from torch import autocast, compile as compile_model
import tensorrt_llm

try:
    driver = t.cuda.get_driver_version()  #~ torch-call-unknown
except Exception:
    driver = None
print(f"NVIDIA Driver Version: {t.cuda.get_driver_version()}")  #~ torch-call-unknown

model = t.compile(
    model,
    options={
        "triton.cudagraphs": True,
        "cuda_graph_capture": True,  #~ torch-compile-option-unknown
        "h100_optimized": True,  #~ torch-compile-option-unknown
        "static_graph": True,  #~ torch-compile-option-unknown
        "max_autotuned": True,  #~ torch-compile-option-unknown
    },
)
options = {"cuda_graph_capture": True}  #~ torch-compile-option-unknown
model = compile_model(model, options=options)
model = compile_model(model, mode="reduce_overhead")  #~ torch-compile-mode-unknown

tf.config.optimizer.set_experimental_options({
    "layout_optimizer": True,
    "h100_xla_optimizations": True,  #~ tf-option-unknown
    "async_memory_pool": True,  #~ tf-option-unknown
})
optimizer = AdamW(1e-4, fused=True)  #~ keras-argument-unknown
optimizer = tf.keras.optimizers.AdamW(learning_rate=1e-4, fused=True)  #~ keras-argument-unknown
model.save("out", save_format='tf')  #~ keras-save-format

with autocast("cuda", dtype=t.float8_e4m3fn):  #~ torch-autocast-float8
    pass
with t.autocast("cuda", t.float8_e5m2):  #~ torch-autocast-float8
    pass
builder = tensorrt_llm.Builder()  #~ trtllm-removed

model = t.compile(model, mode="max-autotune", options={"shape_padding": True})  #~ torch-compile-mode-and-options
model = t.compile(model, mode="ultra-fast", options={"shape_padding": True})  #~ torch-compile-mode-unknown
model = compile_model(model, options=dict(shape_padding=True), mode="default")  #~ torch-compile-mode-and-options
loader = t.utils.data.DataLoader(
    dataset,
    num_workers=0,
    prefetch_factor=4,  #~ torch-prefetch-without-workers
)
t.distributed.init_process_group("nccl", timeout=1800)  #~ torch-timeout-not-timedelta
t.distributed.init_process_group(
    backend="nccl",
    timeout=30 * 60,  #~ torch-timeout-not-timedelta
)

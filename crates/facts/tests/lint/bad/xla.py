"""Sets --xla_gpu_no_such_flag=1, says this text, which is no code."""
import os

os.environ["XLA_FLAGS"] = (
    "--xla_gpu_enable_triton_gemm=false "
    "--xla_gpu_enable_triton_gems=false "  #~ xla-flag-unknown
)
os.environ["XLA_FLAGS"] += " --xla_gpu_enable_async_collectives=true"  #~ xla-flag-removed
flags = ["--xla_gpu_autotune_level=2", f"--xla_gpu_all_reduce_combine_threshold_byte={size}"]  #~ xla-flag-unknown
os.environ["JAX_ENABLE_X46"] = "True"  #~ env-misspelt

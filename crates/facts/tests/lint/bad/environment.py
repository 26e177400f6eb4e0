"""os.environ["H100_ASYNC_MEM_POOL"] = "1" in a docstring is not code."""
import os
import subprocess
from unittest import mock

# os.environ["H100_ASYNC_MEM_POOL"] = "1"
message = 'os.environ["H100_ASYNC_MEM_POOL"] = "1"'

os.environ["H100_ASYNC_MEM_POOL"] = "1"  #~ env-unknown
os.environ.setdefault("NVIDIA_DRIVER_ALLOW_UNSUPPORTED_MEM_FRACTION", "0.95")  #~ env-unknown
os.putenv("CUDA_VISIBLE_DEVICE", "0")  #~ env-misspelt
os.environ.update({
    "NCCL_DEBUG": "WARN",
    "NCCL_SOCKET_IFNAMES": "eth0",  #~ env-misspelt
    "TF_GPU_ALLOCATOR": "cudaMallocAsync",  #~ env-value-invalid
})
os.environ.update(NCCL_IB_GDR_LEVEL="3")  #~ env-removed
if os.environ.get("H100_ASYNC_MEM_POOL"):  #~ env-unknown
    pass
if "H100_ASYNC_MEM_POOL" not in os.environ:  #~ env-unknown
    pass
pool = os.getenv("H100_ASYNC_MEM_POOL", "0")  #~ env-unknown
os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  #~ env-debug-left-on
os.environ["TORCH_USE_CUDA_DSA"] = "1"  #~ env-build-only
os.environ["PYTORCH_CUDA_ALLOC_CONFIG"] = "expandable_segments:True"  #~ env-misspelt
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudamallocasync"  #~ alloc-value-invalid
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = (  #~ alloc-key-unknown
    "expandable_segments:True,"
    "max_split_size:512"
)
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size:512"  #~ alloc-key-unknown
os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:true,max_split_size_mb:512"  #~ alloc-value-invalid

env = dict(os.environ, NCCL_BUFFSIZE="2097152")  #~ env-below-default
env["NCCL_P2P_DISABLE"] = "1"  #~ env-debug-left-on
child_env = {**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": "75"}  #~ env-value-invalid
subprocess.run(["train"], env={"TF_FORCE_GPU_ALLOW_GROWTH": "1"})  #~ env-value-invalid
runtime_env = {"env_vars": {"NCCL_DEBUG": "TRACE"}}  #~ env-debug-left-on
with mock.patch.dict(os.environ, {"NCCL_ASYNC_ERROR_HANDLING": "1"}):  #~ env-renamed
    pass


def test_pool(monkeypatch):
    monkeypatch.setenv("H100_ASYNC_MEM_POOL", "1")  #~ env-unknown


os.system("NCCL_LL_THRESHOLD=0 python train.py")  #~ env-removed
print(f"pool: {os.environ['H100_ASYNC_MEM_POOL']}")  #~ env-unknown
os.environ["CUDA_MODULE_LOADING"] = "LAZY"  #~ env-redundant

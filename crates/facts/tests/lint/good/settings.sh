#!/bin/bash
# Real settings that look like the ones that lint reports.
export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:20
export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512,roundup_power2_divisions:[256:1,>:4]
export PYTORCH_ALLOC_CONF=expandable_segments:True,large_segment_size_mb:12,max_split_size_mb:12
export PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:$SPLIT"
export CUBLAS_WORKSPACE_CONFIG=:16:8
export CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8
export CUBLAS_WORKSPACE_CONFIG="$WORKSPACE"
# sglang and verl use this value; what the driver does with other values is not documented.
export CUDA_MODULE_LOADING=AUTO
# Other programs read these; NCCL and PyTorch do not.
export NCCL_TIMEOUT=1800 TORCH_NCCL_TIMEOUT=1800
NCCL_DEBUG_LEVEL="${NCCL_DEBUG_LEVEL:-WARN}"
srun --export=ALL env NCCL_DEBUG=WARN python train.py NCCL_SOCKET_IFNAMES=eth0
docker run --rm image env
nvidia-smi -pl 350  # the maximum of an H100 PCIe
nvidia-smi -pl 400.0  # max of H100 NVL
nvidia-smi -pl 700  # H100 max
nvidia-smi -pl 400  # A100 SXM maximum

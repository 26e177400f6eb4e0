#!/bin/sh
export H100_ASYNC_MEM_POOL=1
export NCCL_DEBUG=WARN
export NCCL_IB_TIMEOUT=999
# farrier-lint: allow env-unknown an old cluster reads it
export CUDA_LAUNCH_BLOCKING=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
nvidia-smi -pm 1
torchrun --nproc-per-node 8 train.py

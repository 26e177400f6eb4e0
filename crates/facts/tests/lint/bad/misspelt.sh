#!/bin/bash
export OMP_NUM_THREAD=8  #~ env-misspelt
export JAX_ENABLE_X46=1  #~ env-misspelt
export JAX_PLATFORM=cuda  #~ env-misspelt
export TORCH_DISTRIBUTED_DEUBG=INFO  #~ env-misspelt
export HF_HUB_OFLINE=1  #~ env-misspelt
export HF_DATASET_OFFLINE=1  #~ env-misspelt
export CUDA_VISIBLE_DEVICES=all  #~ env-value-invalid
export TORCH_DISTRIBUTED_DEBUG=DETAIL  #~ env-debug-left-on
export NCCL_SOCKET_IFNAME=lo  #~ env-loopback
#~v library-path-stubs
export LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LD_LIBRARY_PATH
#~v library-path-compat
LD_LIBRARY_PATH=/usr/local/cuda-12.8/compat:/usr/local/cuda/lib64 torchrun train.py

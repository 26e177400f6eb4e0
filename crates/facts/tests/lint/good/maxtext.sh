#!/bin/bash
set -euo pipefail
# A run of a JAX trainer on eight nodes of eight GPUs.
export XLA_PYTHON_CLIENT_MEM_FRACTION=0.92
export JAX_COMPILATION_CACHE_DIR=/scratch/jax JAX_ENABLE_X64=0 JAX_PLATFORMS=cuda
export JAX_COORDINATOR_ADDRESS="$(scontrol show hostnames "$SLURM_NODELIST" | head -n1):1234"
export NVTE_FUSED_ATTN=1 NCCL_IB_SL=1 CUDA_DEVICE_MAX_CONNECTIONS=1
export BASE_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_enable_triton_gemm=false"
export XLA_FLAGS="${BASE_FLAGS} --xla_gpu_all_reduce_combine_threshold_bytes=${BYTES:-134217728} \
  --xla_gpu_enable_highest_priority_async_stream=true --xla_gpu_enable_while_loop_double_buffering=true \
  --xla_dump_to=/scratch/hlo/xla_gpu_dump --xla_disable_hlo_passes=rematerialization"
for part in all_gather reduce_scatter; do
  XLA_FLAGS+=" --xla_gpu_${part}_combine_threshold_bytes=134217728"
done
if [[ "${DEBUG:-0}" == 1 ]]; then
  export TORCH_DISTRIBUTED_DEBUG=DETAIL NCCL_SOCKET_IFNAME=lo
fi
export OMP_NUM_THREADS=8 OMP_PROC_BIND=false MKL_NUM_THREADS=8
export NCCL_SOCKET_IFNAME=^lo,docker0
export CUDA_VISIBLE_DEVICES=GPU-8932f937-d72c-4106-c12f-20bd9faed9f6
export CUDA_VISIBLE_DEVICES="" LD_LIBRARY_PATH=/usr/local/cuda/lib64:/opt/compat-tools/lib:$LD_LIBRARY_PATH
export TORCH_DISTRIBUTED_BACKEND=nccl TORCH_MODEL_CACHE=/models OMP_NUM_PROCS=8 HF_MODEL=llama JAX_RUN_ID=7
export HF_HOME=/scratch/hf HF_HUB_ENABLE_HF_TRANSFER=1 HF_TOKEN="$(cat ~/.hf)" HF_HUB_TOKEN=x
srun python -m MaxText.train base.yml run_name="$RUN"
run_hlo_module --xla_gpu_tool_option=1 --num_repeats=5 module.hlo

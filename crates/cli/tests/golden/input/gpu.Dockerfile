FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04
RUN apt-get update && apt-get install -y cuda python3
ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LD_LIBRARY_PATH
ENV OMP_NUM_THREAD=8
ENV XLA_FLAGS=--xla_gpu_enable_latency_hiding_schedular=true

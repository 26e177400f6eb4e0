# syntax=docker/dockerfile:1.7
ARG CUDA=12.8.1
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS builder
# The stub is for linking, in this stage only.
ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LD_LIBRARY_PATH
ENV LIBRARY_PATH=/usr/local/cuda/lib64/stubs
RUN apt-get update && apt-get install -y cuda cmake ninja-build
RUN cmake -B build -G Ninja && cmake --build build

FROM nvidia/cuda:${CUDA}-runtime-ubuntu24.04
RUN LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LD_LIBRARY_PATH ldd /usr/local/bin/tool || true
RUN apt-get update && apt-get install -y --no-install-recommends \
      cuda-toolkit-12-8 cuda-nvcc-12-8 libcudnn9-cuda-12 libnccl2 nvidia-container-toolkit \
      cuda-compat-12-8 nvidia-cuda-toolkit python3-pip \
    && rm -rf /var/lib/apt/lists/*
RUN wget -q https://developer.download.nvidia.com/compute/cuda/12.8.0/local_installers/cuda_12.8.0_570.86.10_linux.run \
    && sh cuda_12.8.0_570.86.10_linux.run --silent --toolkit --override
RUN sh NVIDIA-Linux-x86_64-580.95.05.run --extract-only
COPY --from=builder /src/build/tool /usr/local/bin/tool
ENV NVIDIA_VISIBLE_DEVICES=all
ENV XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_cuda_data_dir=/usr/local/cuda"
ENTRYPOINT ["tool"]

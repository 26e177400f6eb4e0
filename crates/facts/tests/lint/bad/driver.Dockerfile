FROM nvidia/cuda:12.8.1-base-ubuntu24.04 AS base
RUN apt-get update && apt-get install -y --no-install-recommends \
      python3 \
#~v image-driver
      nvidia-driver-570-server=570.133.20-0ubuntu1 \
    && rm -rf /var/lib/apt/lists/*

FROM base
#~v image-driver
RUN DEBIAN_FRONTEND=noninteractive apt-get -y install cuda
#~v image-driver
RUN dnf -y module install nvidia-driver:570-open
#~v image-driver
RUN apt install -y cuda-drivers-570 && apt-get clean
#~v image-driver
RUN sudo sh ./NVIDIA-Linux-x86_64-580.95.05.run --silent
#~v image-driver
RUN chmod +x cuda_12.8.0_570.86.10_linux.run && ./cuda_12.8.0_570.86.10_linux.run --silent --driver --toolkit
#~v library-path-stubs
ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:${LD_LIBRARY_PATH}
#~v env-value-invalid
ENV CUDA_VISIBLE_DEVICES=all
#~v xla-flag-unknown
ENV XLA_FLAGS="--xla_gpu_strict_conv_algorithm_pickers=false"

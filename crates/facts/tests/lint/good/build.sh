#!/bin/bash
# Builds the extension on a host without a driver.
export LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LD_LIBRARY_PATH
export TORCH_CUDA_ARCH_LIST="9.0;10.0"
sudo apt-get install -y nvidia-driver-580-server cuda-drivers
cmake -S . -B build && cmake --build build -j

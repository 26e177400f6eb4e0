#!/bin/bash
#~v xla-flag-unknown
export XLA_FLAGS="--xla_gpu_enable_latency_hiding_schedular=true"
#~v xla-flag-unknown
export XLA_FLAGS="$XLA_FLAGS --xla_gpu_turbo_mode=true"
#~v xla-flag-removed
XLA_FLAGS="${XLA_FLAGS} --xla_gpu_graph_level=0" python train.py
#~v xla-flag-unknown
docker run -e XLA_FLAGS=--xla_gpu_autotune_levels=4 image

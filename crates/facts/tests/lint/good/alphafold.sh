#!/usr/bin/env bash
# Unified memory as AlphaFold's run script sets it: a fraction above one is intentional.
export TF_FORCE_UNIFIED_MEMORY=1
export XLA_PYTHON_CLIENT_MEM_FRACTION=4.0
docker run --gpus all -e TF_FORCE_UNIFIED_MEMORY=1 -e XLA_PYTHON_CLIENT_MEM_FRACTION=4.0 alphafold

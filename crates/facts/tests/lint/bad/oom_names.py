import torch
import torch.cuda as tc
from torch import OutOfMemoryError as OOM
from torch.cuda import OutOfMemoryError

Oom = torch.cuda.OutOfMemoryError
ERRORS = (OutOfMemoryError, ValueError)
Either = getattr(torch, "OutOfMemoryError", RuntimeError)

for batch in loader:
    try:
        model(batch).loss.backward()
    except OutOfMemoryError:
        continue  #~ oom-drops-batch

for batch in loader:
    try:
        model(batch).loss.backward()
    except OOM:
        continue  #~ oom-drops-batch

for batch in loader:
    try:
        model(batch).loss.backward()
    except (ValueError, tc.OutOfMemoryError) as error:
        continue  #~ oom-drops-batch

for batch in loader:
    try:
        model(batch).loss.backward()
    except Oom:
        continue  #~ oom-drops-batch

for batch in loader:
    try:
        model(batch).loss.backward()
    except ERRORS:
        continue  #~ oom-drops-batch

for batch in loader:
    try:
        model(batch).loss.backward()
    except Either:
        continue  #~ oom-drops-batch

for batch in loader:
    try:
        model(batch).loss.backward()
    except torch._C._OutOfMemoryError:
        continue  #~ oom-drops-batch

for batch in loader:
    try:
        model(batch).loss.backward()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        torch.cuda.empty_cache()
        continue  #~ oom-drops-batch

for batch in loader:
    try:
        model(batch).loss.backward()
    except RuntimeError as error:  #~ oom-drops-batch
        if not "out of memory" in str(error):
            raise

for batch in loader:
    try:
        model(batch).loss.backward()
    except RuntimeError as error:
        if "CUBLAS" in str(error):
            raise
        elif "CUDA out of memory" in error.args[0]:
            continue  #~ oom-drops-batch
        raise

for batch in loader:
    try:
        model(batch).loss.backward()
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError):
            continue  #~ oom-drops-batch
        raise

for batch in loader:
    try:
        state = train_step(state, batch)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            continue  #~ oom-drops-batch
        raise

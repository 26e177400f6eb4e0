import torch

for step, batch in enumerate(loader):
    try:
        loss = model(batch).loss
        loss.backward()
        optimizer.step()
    except torch.cuda.OutOfMemoryError:
        print("skip")
        torch.cuda.empty_cache()
        continue  #~ oom-drops-batch


def train(loader):
    # The handler of fairseq's trainer has this shape.
    for samples in loader:
        try:
            loss = criterion(samples)
            loss.backward()
        except RuntimeError as e:
            if "out of memory" in str(e):
                logger.warning("ran out of memory, skipping batch")
                ooms += 1
                for p in model.parameters():
                    if p.grad is not None:
                        del p.grad
                if hasattr(torch.cuda, "empty_cache"):
                    torch.cuda.empty_cache()
                pass  #~ oom-drops-batch
            else:
                raise e


for batch in loader:
    try:
        train_step(batch)
    except torch.OutOfMemoryError: continue  #~ oom-drops-batch

for batch in loader:
    try:
        trainer.training_step(batch)
    except torch.OutOfMemoryError as error:  #~ oom-drops-batch
        logging.error("out of memory: %s", error)

iterator = iter(loader)
while step < total:
    batch = None
    try:
        batch = next(iterator)
        loss = model(batch)
        loss.backward()
    except torch.OutOfMemoryError:
        batch_size = batch_size // 2
        continue  #~ oom-drops-batch

for epoch in range(epochs):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        torch.cuda.empty_cache()  #~ empty-cache-every-step

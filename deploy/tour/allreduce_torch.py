"""The same all-reduce by torch.distributed with gloo: no word of Rota in it, the environment says it all."""

import os
import time

import torch
import torch.distributed as dist

began = time.monotonic()
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
vector = torch.arange(10_000, dtype=torch.float64) + 1_000_000 * rank
dist.all_reduce(vector)
expected = torch.arange(10_000, dtype=torch.float64) * size + 1_000_000 * (size * (size - 1) // 2)
assert torch.equal(vector, expected), "the sum is wrong"
print(f"allreduce by torch {torch.__version__} gloo: rank {rank} of {size}, sum {int(vector.sum())}", flush=True)
print(f"met at {os.environ['MASTER_ADDR']}, {1_000 * (time.monotonic() - began):.0f} ms", flush=True)
dist.destroy_process_group()

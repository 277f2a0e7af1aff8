"""One thread: the tensors here are tiny, and threads that wait for one another on a shared machine made single tests take 25 s."""

import torch

torch.set_num_threads(1)

"""What holds for every test."""

import torch

# Tests run side by side, one process for each core; models here are too small to share one.
torch.set_num_threads(1)

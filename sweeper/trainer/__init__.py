"""The optimised trainer and its measurements. Beside it, only `script.{inside, changes}` import torch."""

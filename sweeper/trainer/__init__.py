"""The optimised trainer and its measurements. Only this package, `inject` and `testing` import torch."""

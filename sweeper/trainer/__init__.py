"""The optimised trainer and its measurements. The only importer of torch."""

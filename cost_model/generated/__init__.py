"""The learned model of kernels that we generate for CPUs: what the analytical model says, corrected by trees."""

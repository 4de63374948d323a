"""Kernels of CPUs as plain data: schedules, what follows from them (tasks, workspace), and which ones are refused."""

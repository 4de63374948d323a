"""CPU kernels as plain data: schedules, what follows from them (tasks, workspace), and which are refused."""

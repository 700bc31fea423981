"""The C++ of the operations on a CPU: its build, its calls, and the gates. Same threads, same bits."""

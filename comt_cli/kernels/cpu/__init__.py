"""C++ of the operations on a CPU: build, calls and gates. Equal threads give equal bits."""

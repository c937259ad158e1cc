"""Programs as CUDA C++: readable source, compiled for any architecture without a device."""

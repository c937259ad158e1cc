"""Programs into LLVM IR and object code for CPUs."""

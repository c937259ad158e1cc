"""The lowering of µGraphs to sketches: outer loops and scratch fixed, inner blocks left to the rules."""

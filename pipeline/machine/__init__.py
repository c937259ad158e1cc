"""What a run does differently for each kind of target."""

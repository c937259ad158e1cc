"""MuSchedule: a model or an operator in, a faster program that is proven to compute the same out."""
